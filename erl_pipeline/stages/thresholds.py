"""Which trajectories went well enough to be learned from, or to be remembered."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.tables.trajectories import Trajectory


def went_well(row: Trajectory, reward_above: float | None) -> bool:
    """Whether a trajectory succeeded or, with a threshold, has a reward above it.

    A reflection has the reward and the success of the attempt that it led to.
    """
    return row.success if reward_above is None else row.reward > reward_above
