"""Settings of a run's warnings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from erl_pipeline.config.base import Settings

WarningKind = Literal[
    "group_size", "no_advantage", "ill_formed", "cut_off", "not_scored", "entropy", "mismatch"
]
"""The kinds of warnings.

- `group_size`: `rollouts.group_size` is 1, so that no group has an advantage
- `no_advantage`: no trajectory of some iterations in a row had an advantage
- `ill_formed`: texts of a role, such as reflections, were ill-formed
- `cut_off`: completions ended at the limit of tokens
- `not_scored`: the environment or its scorer failed in many attempts
- `entropy`: the policy's entropy has collapsed
- `mismatch`: sampler and trainer disagree on log-probabilities
"""


class WarningsConfig(Settings):
    """When a run warns that it is not learning. Each kind of warning is given once: in the terminal or the
    log, by the trackers, and in the report; it is recorded beside the run's ledger. `null` switches a kind
    off. No artifact depends on these settings, and a run can be continued with other values."""

    no_advantage: int | None = Field(default=3, ge=1)
    """Warn after this many iterations in a row whose update had no trajectory with an advantage, because all
    rewards of each group were equal. `null` also switches off the warning about `rollouts.group_size: 1`."""
    ill_formed: float | None = Field(default=1.0, gt=0.0, le=1.0)
    """Warn when this share of an iteration's texts of one role, such as reflections, is ill-formed."""
    cut_off: float | None = Field(default=1.0, gt=0.0, le=1.0)
    """Warn when this share of an iteration's trajectories was cut off at the limit of tokens."""
    not_scored: float | None = Field(default=0.05, gt=0.0, le=1.0)
    """Warn when this share of an iteration's trajectories was not scored, since the environment or its scorer
    failed; nothing is learned from them."""
    entropy: float | None = Field(default=0.02, ge=0.0)
    """Warn when the mean entropy of an update's trained tokens is below this, in nats."""
    mismatch: float | None = Field(default=0.1, gt=0.0)
    """Warn when the mean difference of log-probabilities between sampler and trainer is above this, in nats
    per token."""
    stop_on: tuple[WarningKind, ...] = ()
    """Kinds after which the run stops, when the iteration is complete: `group_size`, `no_advantage`,
    `ill_formed`, `cut_off`, `not_scored`, `entropy`, `mismatch`. It goes on once the kind is removed from the
    list."""
