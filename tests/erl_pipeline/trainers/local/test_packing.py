"""None"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from erl_pipeline.trainers.local.block_attention import BlockSegments
from erl_pipeline.trainers.local.observations import BatchLog, Statistics
from erl_pipeline.trainers.local.packing import ALONE, PlannedMicrobatch, deal, plan_segments
from erl_pipeline.trainers.sequences import TrainingSequence
from tests.erl_pipeline.trainers.local.packed import CPU, pack_rows, pack_segments


def sequence(
    prompt: tuple[int, ...], response: tuple[int, ...], mask: tuple[int, ...] | None = None
) -> TrainingSequence:
    return TrainingSequence("t", "first_attempt", prompt, response, mask or (1,) * len(response), (), 1.0)


def test_a_shared_prompt_stands_once_before_its_responses() -> None:
    (packed,) = pack_segments([sequence((1, 2, 3), (4, 5)), sequence((1, 2, 3), (6, 7, 8))], 100)
    # Longer response first; the last token of a response predicts nothing and is left out.
    assert packed.token_ids.tolist() == [[1, 2, 3, 6, 7, 4]]
    assert packed.positions.tolist() == [[0, 1, 2, 3, 4, 3]]
    # Both first tokens are predicted from the prompt's last position.
    assert packed.sources.tolist() == [2, 3, 4, 2, 5]
    assert packed.targets.tolist() == [6, 7, 8, 4, 5]
    assert packed.tokens.tolist() == [2, 3, 4, 0, 1]


def test_responses_see_the_prompt_and_themselves_only() -> None:
    (packed,) = pack_segments([sequence((1, 2, 3), (4, 5, 9)), sequence((1, 2, 3), (6, 7, 8))], 100)
    seen = torch.zeros(7, 7, dtype=torch.bool)
    assert isinstance(packed.segments, BlockSegments)
    for block in packed.segments.blocks:
        visible = (block.mask == 0).expand(len(block.queries), -1, -1)
        for segment, query in (~block.padding).nonzero().tolist():
            seen[block.queries[segment, query], block.keys[segment][visible[segment, query]]] = True
    assert seen.int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0],
        [1, 1, 1, 0, 0, 1, 0],
        [1, 1, 1, 0, 0, 1, 1],
    ]


def test_environment_tokens_are_input_but_not_trained() -> None:
    (packed,) = pack_segments([sequence((1,), (2, 3, 4, 5), (1, 0, 1, 0))], 100)
    assert packed.token_ids.tolist() == [[1, 2, 3]]
    assert packed.sources.tolist() == [0, 2]
    assert packed.targets.tolist() == [2, 4]


def test_microbatches_keep_to_the_budget_and_hold_every_token_once(sequences: list[TrainingSequence]) -> None:
    trained = sum(len(row.trained_offsets) for row in sequences)
    for budget in (1000, 20, 12):
        packed = pack_segments(sequences, budget)
        assert all(microbatch.token_ids.numel() <= budget for microbatch in packed)
        assert sorted(torch.cat([microbatch.tokens for microbatch in packed]).tolist()) == list(
            range(trained)
        )


def test_a_family_that_is_too_large_repeats_its_prompt() -> None:
    packed = pack_segments([sequence((1, 2, 3), (4, 5, 6)), sequence((1, 2, 3), (7, 8, 9))], 6)
    assert [microbatch.token_ids.tolist() for microbatch in packed] == [[[1, 2, 3, 4, 5]], [[1, 2, 3, 7, 8]]]


def test_a_sequence_longer_than_the_budget_comes_alone() -> None:
    packed = pack_segments([sequence((1, 2), (3,)), sequence((4,) * 9, (5,))], 4)
    assert [microbatch.token_ids.numel() for microbatch in packed] == [9, 2]


def test_rows_are_padded_to_the_longest_of_their_microbatch() -> None:
    rows = [sequence((1, 2), (3, 4)), sequence((5,), (6,)), sequence((7, 8, 9), (1, 2))]
    packed = pack_rows(rows, 8)
    assert [microbatch.token_ids.tolist() for microbatch in packed] == [[[7, 8, 9, 1], [1, 2, 3, 0]], [[5]]]
    assert packed[0].sources.tolist() == [2, 3, 5, 6]
    assert packed[0].targets.tolist() == [1, 2, 3, 4]
    assert packed[0].tokens.tolist() == [3, 4, 0, 1]


@dataclass
class ThreadRanks:
    """A rank in a thread: it exchanges with the others of `texts` and `sums` at a barrier."""

    rank: int
    count: int
    barrier: threading.Barrier
    shared: dict[int, Any] = field(default_factory=dict)
    sums_now = True

    def add_up(self, tensor: torch.Tensor) -> None:
        found = self._exchanged(tensor.clone())
        tensor.copy_(torch.stack(found).sum(0))

    def exchange(self, text: str) -> list[str]:
        return self._exchanged(text)

    def gather_weights(self, model: PreTrainedModel) -> None:
        raise AssertionError("no model is here")

    def let_go_of_weights(self, model: PreTrainedModel) -> None:
        raise AssertionError("no model is here")

    def sum_gradients(self, model: PreTrainedModel, now: bool) -> None:
        pass

    def _exchanged(self, value: Any) -> list[Any]:
        self.shared[self.rank] = value
        self.barrier.wait(60)
        found = [self.shared[rank] for rank in range(self.count)]
        self.barrier.wait(60)
        return found


def on_two_ranks(work: Callable[[ThreadRanks], Any]) -> list[Any]:
    """The result of each of two ranks."""
    barrier, shared = threading.Barrier(2), dict[int, Any]()
    made: dict[int, Any] = {}

    def run(rank: int) -> None:
        made[rank] = work(ThreadRanks(rank, 2, barrier, shared))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return [made[0], made[1]]


def sequences(*lengths: int) -> list[TrainingSequence]:
    """Prompts of one token, each another, and responses of one token less than the lengths."""
    return [
        TrainingSequence(
            trajectory_id=f"row-{number}",
            role="attempt",
            prompt_token_ids=(number,),
            response_token_ids=(9,) * length,
            response_mask=(1,) * length,
            behaviour_logprobs=(),
            advantage=1.0,
        )
        for number, length in enumerate(lengths)
    ]


def lengths(microbatches: Any) -> list[int]:
    return [0 if each is None else each.build().token_ids.numel() for each in microbatches]


def planned(*rows: int) -> Callable[[int], list[PlannedMicrobatch]]:
    return lambda budget: plan_segments(sequences(*rows), budget, CPU)


def test_one_process_has_all_microbatches_as_they_are_packed() -> None:
    dealt = deal(planned(10, 8, 6), 18, ALONE)
    assert lengths(dealt.own) == [18, 6]
    assert (dealt.microbatches, dealt.input_tokens) == (2, 24)


@pytest.mark.parametrize(
    ("rows", "budget", "first", "second"),
    [
        # Two microbatches of one pass each.
        ((10, 10), 10, [10], [10]),
        # All would fit into one pass; they are divided so that neither rank is idle.
        ((10, 10), 2048, [10], [10]),
        # Three passes for two ranks: the second takes part in the last pass without a token.
        ((10, 10, 10), 10, [10, 10], [10, 0]),
        # 4 x 6 tokens in passes of at most 18: two passes of 12 instead of 18 and 6.
        ((6, 6, 6, 6), 18, [12], [12]),
        # Nothing to distribute.
        ((), 10, [], []),
        # One sequence cannot be divided.
        ((10,), 2048, [10], [0]),
    ],
)
def test_ranks_get_like_parts_in_equally_many_passes(
    rows: tuple[int, ...], budget: int, first: list[int], second: list[int]
) -> None:
    found = on_two_ranks(lambda ranks: deal(planned(*rows), budget, ranks))
    assert [lengths(dealt.own) for dealt in found] == [first, second]
    assert found[0].input_tokens == found[1].input_tokens == sum(rows)
    assert found[0].microbatches == sum(each is not None for dealt in found for each in dealt.own)


def test_what_ranks_observe_is_added_up() -> None:
    """Values 1, 2 and 6 on two ranks: mean 3, largest 6; of group 1 the mean is 4."""

    def observe(ranks: ThreadRanks) -> list[Any]:
        statistics = Statistics()
        values = torch.tensor([1.0, 2.0] if ranks.rank == 0 else [6.0])
        statistics.observe("ratio", values)
        statistics.observe_groups("ratio", values, torch.tensor([0, 1] if ranks.rank == 0 else [1]), 2)
        statistics.keep("weight", values, torch.ones(len(values), dtype=torch.bool))
        if ranks.rank == 1:
            statistics.observe("seen by one", torch.tensor([0.5]))
        whole = statistics.over(ranks)
        return [
            whole.mean("ratio"),
            whole.maximum("ratio"),
            whole.total("ratio"),
            whole.group_mean("ratio", 1),
            whole.quantiles("weight", (0.0, 0.5, 1.0)),
            whole.mean("seen by one"),
        ]

    expected = [3.0, 6.0, 9.0, 4.0, [1.0, 2.0, 6.0], 0.5]
    assert on_two_ranks(observe) == [expected, expected]


def test_each_rank_gets_the_columns_of_all() -> None:
    def log(ranks: ThreadRanks) -> dict[str, list[float]]:
        seen = BatchLog(3, torch.device("cpu"))
        seen.add("loss", torch.tensor([0.1 * (ranks.rank + 1)]), torch.tensor([ranks.rank]))
        if ranks.rank == 1:
            seen.add("mismatch", torch.tensor([7.0]), torch.tensor([2]))
        seen.add_up(ranks)
        return {name: column.tolist() for name, column in sorted(seen.columns.items())}

    tenth, fifth = torch.tensor([0.1, 0.1 * 2]).tolist()
    expected = {"loss": [tenth, fifth, 0.0], "mismatch": [0.0, 0.0, 7.0]}
    assert on_two_ranks(log) == [expected, expected]
