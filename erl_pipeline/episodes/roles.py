"""Roles of trajectories that mean the same in every method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.tables.trajectories import Trajectory

JUDGE = "judge"
"""What a judge said of a finished attempt (`erl_pipeline.episodes.judge`)."""

NEVER_TRAINED = frozenset({JUDGE})
"""Their trajectories are stored and read by people. No update, group or dataset takes them, since nothing
says how good they are."""


def trainable(rows: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories that may be trained."""
    return [row for row in rows if row.role not in NEVER_TRAINED]
