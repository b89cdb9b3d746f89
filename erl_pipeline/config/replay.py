"""Settings of the loss of replayed trajectories."""

from __future__ import annotations

from erl_pipeline.config.base import Settings


class ReplayLoss(Settings):
    """How an update uses trajectories of an older policy together with fresh ones."""

    role: str
    """The role of the replayed trajectories."""
    corrected: bool
    """Whether the ratio w is computed against the stored log-probabilities. If not, w is 1."""
    shaping_beta: float | None
    """Replayed tokens get w / (w + beta) in place of w; None keeps w."""
    weight_cap: float | None
    """Largest w; None: no limit."""
    clip: bool
    """Whether fresh tokens keep their clip range in an update with replayed tokens."""
