"""Settings of the distillation dataset."""

from __future__ import annotations

from pydantic import Field

from erl_pipeline.config.base import Settings


class DistillationConfig(Settings):
    """Successful attempts become supervised examples on the prompt that evaluation uses."""

    max_rows_per_task: int | None = Field(default=None, ge=1)
    """Most rows of one task in an iteration's dataset; `null` keeps all."""
