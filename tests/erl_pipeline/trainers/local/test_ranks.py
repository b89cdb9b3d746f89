"""Distributing microbatches over ranks, and adding up what they have observed; two ranks in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from erl_pipeline.trainers.local.packing import Microbatch, pack_segments
from erl_pipeline.trainers.local.ranks import ALONE, deal
from erl_pipeline.trainers.local.sequence_log import BatchLog
from erl_pipeline.trainers.local.statistics import Statistics
from erl_pipeline.trainers.sequences import TrainingSequence


@dataclass
class ThreadRanks:
    """A rank in a thread: it exchanges with the others of `texts` and `sums` at a barrier."""

    rank: int
    count: int
    barrier: threading.Barrier
    shared: dict[int, Any] = field(default_factory=dict)

    def add_up(self, tensor: torch.Tensor) -> None:
        found = self._exchanged(tensor.clone())
        tensor.copy_(torch.stack(found).sum(0))

    def exchange(self, text: str) -> list[str]:
        return self._exchanged(text)

    def gather_weights(self, model: PreTrainedModel) -> None:
        raise AssertionError("no model is here")

    def let_go_of_weights(self, model: PreTrainedModel) -> None:
        raise AssertionError("no model is here")

    def _exchanged(self, value: Any) -> list[Any]:
        self.shared[self.rank] = value
        self.barrier.wait(10)
        found = [self.shared[rank] for rank in range(self.count)]
        self.barrier.wait(10)
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
        thread.join(30)
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
    return [0 if each is None else each.token_ids.numel() for each in microbatches]


def packed(*rows: int) -> Callable[[int], list[Microbatch]]:
    return lambda budget: pack_segments(sequences(*rows), budget, torch.device("cpu"))


def test_one_process_has_all_microbatches_as_they_are_packed() -> None:
    dealt = deal(packed(10, 8, 6), 18, ALONE)
    assert lengths(dealt.all) == lengths(dealt.own) == [18, 6]


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
    found = on_two_ranks(lambda ranks: deal(packed(*rows), budget, ranks))
    assert [lengths(dealt.own) for dealt in found] == [first, second]
    assert sum(lengths(found[0].all)) == sum(rows)


def test_what_ranks_observe_is_added_up() -> None:
    """Values 1, 2 and 6 on two ranks: mean 3, largest 6; of group 1 the mean is 4."""

    def observe(ranks: ThreadRanks) -> list[Any]:
        statistics = Statistics()
        values = torch.tensor([1.0, 2.0] if ranks.rank == 0 else [6.0])
        statistics.observe("ratio", values)
        statistics.observe_groups("ratio", values, torch.tensor([0, 1] if ranks.rank == 0 else [1]), 2)
        statistics.keep("weight", values)
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
