"""What became of memory entries, worked out by hand on a few trajectories."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from storage.memory.use import Comparison, compare, memory_searches, retrieval_counts
from storage.tables.trajectories import Trajectory, write_trajectories


def episode(
    first: Trajectory, name: str, task: str, iteration: int, saw: tuple[str, ...], success: bool | None
) -> list[Trajectory]:
    """A reflection that saw these entries, and the second attempt after it; None: there was none."""
    reflection = replace(
        first,
        trajectory_id=f"{name}-r",
        role="reflection",
        parent_trajectory_id=f"{name}-1",
        task_id=task,
        iteration=iteration,
        memory_version=f"version-{iteration}",
        memory_entry_ids=saw,
        text="go right",
        success=bool(success),
    )
    attempt = replace(
        reflection,
        trajectory_id=f"{name}-2",
        role="second_attempt",
        parent_trajectory_id=f"{name}-r",
        memory_entry_ids=(),
        text=None,
        memory_version="",
    )
    begun = replace(first, trajectory_id=f"{name}-1", task_id=task, iteration=iteration)
    return [begun, reflection, *([] if success is None else [attempt])]


@pytest.fixture
def files(trajectory: Trajectory, tmp_path: Path) -> list[Path]:
    rows = [
        episode(trajectory, "a", "lake", 2, ("m-1", "m-2"), True),
        episode(trajectory, "b", "lake", 2, ("m-1",), False),
        episode(trajectory, "c", "lake", 2, ("m-2",), True),
        episode(trajectory, "d", "lake", 1, (), False),
        episode(trajectory, "e", "pond", 2, (), True),
        episode(trajectory, "f", "pond", 3, ("m-1",), True),
        episode(trajectory, "g", "pond", 3, ("m-1",), None),
        episode(trajectory, "h", "sea", 3, (), False),
    ]
    files = [tmp_path / f"{number}.parquet" for number in range(2)]
    write_trajectories(files[0], [row for each in rows[:4] for row in each])
    write_trajectories(files[1], [row for each in rows[4:] for row in each])
    return files


def test_retrievals_are_counted_by_iteration_and_version(files: list[Path]) -> None:
    assert retrieval_counts(memory_searches(files)).rows() == [
        ("m-1", 2, "version-2", 2),
        ("m-1", 3, "version-3", 2),
        ("m-2", 2, "version-2", 1 + 1),
    ]


def test_an_entry_is_compared_with_other_attempts_at_the_same_tasks(files: list[Path]) -> None:
    """m-1 was seen by a, b, f and g, which had no second attempt; c, d and e are the others."""
    found = compare(memory_searches(files), "m-1")
    assert found.with_memory.by_task == {"lake": [True, False], "pond": [True]}
    assert found.without.by_task == {"lake": [True, False], "pond": [True]}
    assert found.without_same_iterations.by_task == {"lake": [True], "pond": [True]}
    assert (found.with_memory.successes, found.with_memory.attempts) == (2, 3)


def test_an_entry_that_all_saw_has_no_comparison(files: list[Path]) -> None:
    found = compare(memory_searches(files[1:]).filter(iteration=3), "m-1")
    assert found.with_memory.by_task == {"pond": [True]}
    assert found.without.attempts == 0
    assert compare(memory_searches(files), "m-9").with_memory.attempts == 0


def test_memory_as_a_whole_is_compared_with_reflections_that_saw_none(files: list[Path]) -> None:
    found: Comparison = compare(memory_searches(files), None)
    assert found.with_memory.by_task == {"lake": [True, False, True], "pond": [True]}
    assert found.without.by_task == {"lake": [False], "pond": [True], "sea": [False]}
    assert found.without_same_iterations.by_task == {"pond": [True], "sea": [False]}
