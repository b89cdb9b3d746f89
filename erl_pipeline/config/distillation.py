"""Settings of the distillation dataset."""

from __future__ import annotations

from pydantic import Field

from erl_pipeline.config.base import Settings


class DistillationConfig(Settings):
    """Successful attempts become supervised examples, with the prompt that evaluation uses."""

    reward_above: float | None = None
    """Distil attempts with a reward above this; 0 is the rule of the ERL paper (arXiv 2602.13949, L_distill:
    r₂ > 0). `null`: distil attempts that succeeded, which is not the same if rewards are graded."""
    max_rows_per_task: int | None = Field(default=None, ge=1)
    """The most attempts at one task in an iteration's dataset; `null` keeps all."""
    window: int = Field(default=1, ge=1)
    """Train on the datasets of the last `window` iterations, the present one included. Set
    `fine_tune.batch_rows` and `fine_tune.steps` to match: they say how many rows are drawn, and how often."""
