"""Roles and ends of trajectories that mean the same in every method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.tables.trajectories import Trajectory

JUDGE = "judge"
"""What a judge said of a finished attempt (`erl_pipeline.episodes.judge`)."""

NEVER_TRAINED = frozenset({JUDGE})
"""Roles whose trajectories are stored for people to read. No update, group or dataset takes them, since
nothing says how good they are."""

SCORER_ERROR = "scorer_error"
"""Finish reason of an attempt that could not be scored (`erl_pipeline.environments.interface.ScorerFailed`),
and of the reflection that led to it. No update takes them, since nothing says how good they are."""

SCORER_ERRORS = "scorer_errors"
"""Counter of the episodes that ended in this way."""


def is_trainable(row: Trajectory) -> bool:
    """Whether a trajectory may be trained on."""
    return row.role not in NEVER_TRAINED and row.finish_reason != SCORER_ERROR


def trainable(rows: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories that may be trained on."""
    return [row for row in rows if is_trainable(row)]
