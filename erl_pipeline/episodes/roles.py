"""Roles of trajectories that mean the same in every method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from storage.tables.scored import is_scored

if TYPE_CHECKING:
    from storage.tables.trajectories import Trajectory

JUDGE = "judge"
"""What a judge said of a finished attempt (`erl_pipeline.episodes.judge`)."""

NEVER_TRAINED = frozenset({JUDGE})
"""Roles whose trajectories are stored for people to read. No update, group or dataset takes them, since
nothing says how good they are."""


def is_trainable(row: Trajectory) -> bool:
    """Whether a trajectory may be trained on."""
    return row.role not in NEVER_TRAINED and is_scored(row)


def trainable(rows: Sequence[Trajectory]) -> list[Trajectory]:
    return [row for row in rows if is_trainable(row)]
