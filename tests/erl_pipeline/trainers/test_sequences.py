from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from erl_pipeline.trainers.sequences import TrainingSequence

SEQUENCE = TrainingSequence("t", "reflection", (1, 2), (3, 4, 5), (1, 0, 1), (-0.5, 0.0, -0.25), 1.0)


def test_trained_offsets_are_those_of_the_policys_tokens() -> None:
    assert SEQUENCE.trained_offsets.tolist() == [0, 2]


@pytest.mark.parametrize(
    "change",
    [{"prompt_token_ids": ()}, {"response_mask": (1, 1)}, {"behaviour_logprobs": (-0.5,)}],
)
def test_sequences_that_do_not_fit_together_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="trajectory t has"):
        replace(SEQUENCE, **change)
