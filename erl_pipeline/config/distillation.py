"""Settings of the distillation dataset."""

from __future__ import annotations

from pydantic import Field

from erl_pipeline.config.base import Settings


class DistillationConfig(Settings):
    """Attempts that went well become supervised examples on the prompt that evaluation uses."""

    reward_above: float | None = None
    """Distil attempts with a reward above this; 0 is the rule of the ERL paper (arXiv 2602.13949, L_distill:
    r₂ > 0), which differs where rewards are graded. `null`: attempts that succeeded."""
    max_rows_per_task: int | None = Field(default=None, ge=1)
    """Most attempts at one task in an iteration's dataset; `null` keeps all."""
    window: int = Field(default=1, ge=1)
    """Train on the datasets of the last so many iterations, this one's among them. Set `fine_tune.batch_rows`
    and `fine_tune.steps` with it: they say how many rows are drawn, and how often."""
