"""Sequences of the seven words that the small models know."""

from __future__ import annotations

from collections.abc import Callable

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.config.optimizer import UpdateConfig
from erl_pipeline.trainers.interface import Reinforcement, TrainingStart
from erl_pipeline.trainers.sequences import TrainingSequence

Start = Callable[..., TrainingStart]
"""See the fixture `start`."""

ROWS = [
    TrainingSequence(
        trajectory_id=f"row-{number}",
        role="attempt",
        prompt_token_ids=(1, 3, *(4,) * (number % 3)),
        response_token_ids=(5, 2, *(6,) * number),
        response_mask=(1,) * (2 + number),
        behaviour_logprobs=(-2.0,) * (2 + number),
        advantage=1.0 if number % 2 else -0.7,
    )
    for number in range(5)
]
"""Prompts of 2 to 4 words, the first two of which come twice; responses of 2 to 6."""


def reinforcement(**update: object) -> Reinforcement:
    """An update whose microbatches hold two or three rows, so that two ranks have some each."""
    settings = UpdateConfig.model_validate({"microbatch_tokens": 12, **update})
    return Reinforcement(ROWS, ObjectiveConfig(), settings, seed=1)
