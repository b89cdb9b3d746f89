"""Settings of the distillation dataset."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from erl_pipeline.config.base import Settings


class DistillationConfig(Settings):
    """Which successful attempts become supervised examples on the prompt that evaluation uses."""

    source: Literal["second_attempt", "first_attempt"] | None = None
    """Role of the attempts that are distilled. Default: `second_attempt` for ERL (arXiv 2602.13949,
    L_distill), `first_attempt` for RLVR (the control: supervised training on own successes)."""
    max_rows_per_task: int | None = Field(default=None, ge=1)
    """Most rows of one task in an iteration's dataset; `null` keeps all."""
