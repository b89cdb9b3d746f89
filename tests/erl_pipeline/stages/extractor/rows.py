"""Attempts and requests, written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from storage.tables.trajectories import Trajectory
from tests.storage.conftest import FIRST


def attempt(number: int, **changes: Any) -> Trajectory:
    """An attempt at one task, or a different trajectory with `changes`."""
    values: dict[str, Any] = {
        "trajectory_id": f"a{number}",
        "episode_id": f"e{number}",
        "sample_index": number,
        "feedback": "lost",
        "messages": '[{"role": "user", "content": "board notes ? ? ? ?"}]',
        **changes,
    }
    return replace(FIRST, **values)


def played(number: int, subgroup: str, *entry_ids: str, success: bool) -> Trajectory:
    """An attempt in one half of its group, with these entries in its prompt."""
    return attempt(
        number, subgroup=subgroup, memory_entry_ids=entry_ids, reward=float(success), success=success
    )
