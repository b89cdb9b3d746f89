"""Credit of memory entries, worked out by hand on a few groups."""

from __future__ import annotations

from dataclasses import astuple, replace
from pathlib import Path

import polars as pl
import pytest

from storage.memory.credit import (
    Evidence,
    Observation,
    evidence,
    memory_searches,
    observations,
    retrieval_counts,
)
from storage.memory.operations import with_observations
from storage.tables.trajectories import FREE, GUIDED, Trajectory, write_trajectories


def reflection(
    first: Trajectory,
    name: str,
    task: str,
    reward: float,
    saw: tuple[str, ...] | None,
    *,
    iteration: int = 2,
    revision: int = 1,
    subgroup: str | None = "",
) -> Trajectory:
    """A reflection that saw these entries, or none (`free`); its reward is that of the attempt it led to."""
    return replace(
        first,
        trajectory_id=f"{name}-r",
        episode_id=name,
        role="reflection",
        parent_trajectory_id=f"{name}-1",
        task_id=task,
        group_id=f"{iteration}/{task}/reflection/{revision}",
        iteration=iteration,
        revision_index=revision,
        subgroup=(FREE if saw is None else GUIDED) if subgroup == "" else subgroup,
        memory_version="" if saw is None else f"version-{iteration}",
        memory_entry_ids=saw or (),
        text="go right",
        reward=reward,
        success=reward >= 1.0,
    )


def searches(rows: list[Trajectory], folder: Path) -> pl.DataFrame:
    write_trajectories(folder / "trajectories.parquet", rows)
    return memory_searches([folder / "trajectories.parquet"])


def test_those_who_saw_an_entry_are_compared_with_those_of_their_group_without_memory(
    trajectory: Trajectory, tmp_path: Path
) -> None:
    """lake: the free reflections have 0, 1, 0, with mean 1/3; those with m-1 have 1 and 1, with m-2 also 0.
    pond: the free one has 1, the one with m-1 has 0. sea has no free one, so it gives no observation."""
    rows = [
        reflection(trajectory, "a", "lake", 1.0, ("m-1", "m-2")),
        reflection(trajectory, "b", "lake", 1.0, ("m-1",)),
        reflection(trajectory, "c", "lake", 0.0, ("m-2",)),
        reflection(trajectory, "d", "lake", 0.0, None),
        reflection(trajectory, "e", "lake", 1.0, None),
        reflection(trajectory, "f", "lake", 0.0, None),
        reflection(trajectory, "g", "pond", 0.0, ("m-1",)),
        reflection(trajectory, "h", "pond", 1.0, None),
        reflection(trajectory, "i", "sea", 1.0, ("m-1",)),
    ]
    found = searches(rows, tmp_path)
    assert [(each.task_id, each.entry_ids, each.difference) for each in observations(found)] == [
        ("lake", ("m-1", "m-2"), pytest.approx(2 / 3)),
        ("lake", ("m-1",), pytest.approx(2 / 3)),
        ("lake", ("m-2",), pytest.approx(-1 / 3)),
        ("pond", ("m-1",), -1.0),
    ]
    assert [astuple(each) for each in evidence(found)] == [
        ("m-1", 4, pytest.approx(2 / 3 + 2 / 3 - 1), 3),
        ("m-2", 2, pytest.approx(2 / 3 - 1 / 3), 2),
    ]


def test_credit_is_the_mean_shrunk_by_n_over_n_plus_8() -> None:
    """Two observations of 1: mean 1, shrunk by 2/10. Six more of 1: by 8/16. All at once is the same."""
    assert with_observations(0.0, 0, 2.0, 2) == pytest.approx((1.0 * 2 / 10, 2))
    assert with_observations(0.2, 2, 6.0, 6) == pytest.approx((1.0 * 8 / 16, 8))
    assert with_observations(0.0, 0, 8.0, 8) == pytest.approx((0.5, 8))
    assert with_observations(0.3, 5, 0.0, 0) == pytest.approx((0.3, 5))


def test_groups_are_not_mixed_and_later_rounds_do_not_count(trajectory: Trajectory, tmp_path: Path) -> None:
    """The same task in iteration 3 is another group. Only episodes that failed reach a second round."""
    rows = [
        reflection(trajectory, "a", "lake", 1.0, ("m-1",)),
        reflection(trajectory, "b", "lake", 0.5, None),
        reflection(trajectory, "c", "lake", 1.0, ("m-1",), iteration=3),
        reflection(trajectory, "d", "lake", 0.0, None, iteration=3),
        reflection(trajectory, "e", "lake", 1.0, ("m-1",), revision=2),
        reflection(trajectory, "f", "lake", 0.0, None, revision=2),
    ]
    found = searches(rows, tmp_path)
    assert [(each.iteration, each.difference) for each in observations(found)] == [(2, 0.5), (3, 1.0)]
    assert evidence(found) == [Evidence("m-1", 3, 1.5, 2)]


def test_without_a_draw_there_is_no_credit(trajectory: Trajectory, tmp_path: Path) -> None:
    """Where memory is withheld from no reflection, those that found nothing in it are not a control group."""
    rows = [
        reflection(trajectory, "a", "lake", 1.0, ("m-1",), subgroup=None),
        reflection(trajectory, "b", "lake", 0.0, (), subgroup=None),
    ]
    assert evidence(searches(rows, tmp_path)) == [Evidence("m-1", 1, 0.0, 0)]


def test_a_guided_one_for_whom_memory_had_nothing_counts_for_memory_as_a_whole(
    trajectory: Trajectory, tmp_path: Path
) -> None:
    rows = [reflection(trajectory, "a", "lake", 1.0, ()), reflection(trajectory, "b", "lake", 0.0, None)]
    found = searches(rows, tmp_path)
    assert observations(found) == [Observation("lake", 2, (), 1.0)]
    assert evidence(found) == []


def test_each_search_has_the_base_of_its_task(trajectory: Trajectory, tmp_path: Path) -> None:
    """Leave one out: with rewards 0, 0, 1 of the first attempts, the base of each is the mean of the
    others."""
    first = [
        replace(
            trajectory, trajectory_id=f"{name}-1", episode_id=name, reward=reward, group_id="2/lake/first/0"
        )
        for name, reward in (("a", 0.0), ("b", 0.0), ("c", 1.0))
    ]
    lonely = replace(trajectory, trajectory_id="d-1", episode_id="d", group_id="2/pond/first/0")
    rows = [
        *first,
        lonely,
        reflection(trajectory, "a", "lake", 1.0, ("m-1",)),
        reflection(trajectory, "b", "lake", 0.0, None),
        reflection(trajectory, "d", "pond", 0.0, None),
    ]
    found = searches(rows, tmp_path)
    assert found.select("trajectory_id", "base").rows() == [("a-r", 0.5), ("b-r", 0.5), ("d-r", None)]


def test_retrievals_are_counted_by_iteration_and_version(trajectory: Trajectory, tmp_path: Path) -> None:
    rows = [
        reflection(trajectory, "a", "lake", 1.0, ("m-1", "m-2")),
        reflection(trajectory, "b", "lake", 1.0, ("m-1",)),
        reflection(trajectory, "c", "lake", 1.0, ("m-1",), iteration=3),
        reflection(trajectory, "d", "lake", 1.0, None),
    ]
    assert retrieval_counts(searches(rows, tmp_path)).rows() == [
        ("m-1", 2, "version-2", 2),
        ("m-1", 3, "version-3", 1),
        ("m-2", 2, "version-2", 1),
    ]
