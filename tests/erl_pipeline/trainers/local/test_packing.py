from __future__ import annotations

import torch

from erl_pipeline.trainers.local.packing import pack_rows, pack_segments
from erl_pipeline.trainers.sequences import TrainingSequence

CPU = torch.device("cpu")


def sequence(
    prompt: tuple[int, ...], response: tuple[int, ...], mask: tuple[int, ...] | None = None
) -> TrainingSequence:
    return TrainingSequence("t", "first_attempt", prompt, response, mask or (1,) * len(response), (), 1.0)


def test_a_shared_prompt_stands_once_before_its_responses() -> None:
    (packed,) = pack_segments([sequence((1, 2, 3), (4, 5)), sequence((1, 2, 3), (6, 7, 8))], 100, CPU)
    # Longer response first; the last token of a response predicts nothing and is left out.
    assert packed.token_ids.tolist() == [[1, 2, 3, 6, 7, 4]]
    assert packed.positions.tolist() == [[0, 1, 2, 3, 4, 3]]
    # Both first tokens are predicted from the prompt's last position.
    assert packed.sources.tolist() == [2, 3, 4, 2, 5]
    assert packed.targets.tolist() == [6, 7, 8, 4, 5]
    assert packed.tokens.tolist() == [2, 3, 4, 0, 1]


def test_responses_see_the_prompt_and_themselves_only() -> None:
    (packed,) = pack_segments([sequence((1, 2, 3), (4, 5, 9)), sequence((1, 2, 3), (6, 7, 8))], 100, CPU)
    assert packed.segments is not None
    seen = torch.zeros(7, 7, dtype=torch.bool)
    for block in packed.segments:
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
    (packed,) = pack_segments([sequence((1,), (2, 3, 4, 5), (1, 0, 1, 0))], 100, CPU)
    assert packed.token_ids.tolist() == [[1, 2, 3]]
    assert packed.sources.tolist() == [0, 2]
    assert packed.targets.tolist() == [2, 4]


def test_microbatches_keep_to_the_budget_and_hold_every_token_once(sequences: list[TrainingSequence]) -> None:
    trained = sum(len(row.trained_offsets) for row in sequences)
    for budget in (1000, 20, 12):
        packed = pack_segments(sequences, budget, CPU)
        assert all(microbatch.token_ids.numel() <= budget for microbatch in packed)
        assert sorted(torch.cat([microbatch.tokens for microbatch in packed]).tolist()) == list(
            range(trained)
        )


def test_a_family_that_is_too_large_repeats_its_prompt() -> None:
    packed = pack_segments([sequence((1, 2, 3), (4, 5, 6)), sequence((1, 2, 3), (7, 8, 9))], 6, CPU)
    assert [microbatch.token_ids.tolist() for microbatch in packed] == [[[1, 2, 3, 4, 5]], [[1, 2, 3, 7, 8]]]


def test_a_sequence_longer_than_the_budget_comes_alone() -> None:
    packed = pack_segments([sequence((1, 2), (3,)), sequence((4,) * 9, (5,))], 4, CPU)
    assert [microbatch.token_ids.numel() for microbatch in packed] == [9, 2]


def test_rows_are_padded_to_the_longest_of_their_microbatch() -> None:
    rows = [sequence((1, 2), (3, 4)), sequence((5,), (6,)), sequence((7, 8, 9), (1, 2))]
    packed = pack_rows(rows, 8, CPU)
    assert [microbatch.token_ids.tolist() for microbatch in packed] == [[[7, 8, 9, 1], [1, 2, 3, 0]], [[5]]]
    assert packed[0].sources.tolist() == [2, 3, 5, 6]
    assert packed[0].targets.tolist() == [1, 2, 3, 4]
    assert packed[0].tokens.tolist() == [3, 4, 0, 1]
