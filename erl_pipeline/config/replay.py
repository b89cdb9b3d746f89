"""Settings of the loss of replayed trajectories."""

from __future__ import annotations

from erl_pipeline.config.base import Settings


class ReplayLoss(Settings):
    """How trajectories of an older policy enter an update, beside fresh ones."""

    role: str
    """Role of the trajectories that are replayed."""
    corrected: bool
    """Whether the ratio w is taken against the stored log-probabilities. If not, w is 1."""
    shaping_beta: float | None
    """Replayed tokens get w / (w + beta) in place of w; None leaves w."""
    weight_cap: float | None
    """Largest w; None bounds nothing."""
    clip: bool
    """Whether fresh tokens keep their clip range beside replayed ones."""
