"""From which samples of a group memory is withheld."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from erl_pipeline.episodes.context import EpisodeIdentity, subgroup_of
from storage.artifacts.recipe import derive_seed
from tests.erl_pipeline.episodes.script import PROVENANCE, TASK


def group(withhold: float, size: int = 8, task: str = "corner", seed: int = 0) -> list[str | None]:
    """The subgroups of a task's samples."""
    provenance = replace(PROVENANCE, run_seed=seed)
    mine = replace(TASK, task_id=task)
    return [subgroup_of(EpisodeIdentity(mine, sample, provenance), withhold) for sample in range(size)]


@pytest.mark.parametrize(("withhold", "size", "free"), [(0.5, 8, 4), (0.25, 8, 2), (0.5, 4, 2), (1.0, 3, 3)])
def test_the_share_of_each_group_is_exact(withhold: float, size: int, free: int) -> None:
    for task in ("corner", "edge", "middle"):
        assert Counter(group(withhold, size, task))["free"] == free


def test_a_share_that_is_no_whole_number_is_rounded_by_the_seed() -> None:
    """A third of 4 is 1.33: one or two samples, and each sample in about a third of 300 groups."""
    groups = [group(1 / 3, 4, seed=seed) for seed in range(300)]
    assert {Counter(each)["free"] for each in groups} == {1, 2}
    for sample in range(4):
        share = sum(each[sample] == "free" for each in groups) / 300
        assert share == pytest.approx(1 / 3, abs=0.08)


def test_half_of_a_group_is_every_other_sample_from_a_place_that_the_seed_draws() -> None:
    """Drawn below a half, the places .5 d, .5 d + .5 ... pass a whole number at every odd sample."""
    drawn = derive_seed(0, 3, "corner", "withhold") / 2**63
    free_first = math.floor(drawn + 0.5) > 0
    expected = ["free", "guided"] if free_first else ["guided", "free"]
    assert group(0.5) == expected * 4
    assert {tuple(group(0.5, 2, seed=seed)) for seed in range(20)} == {("free", "guided"), ("guided", "free")}


def test_where_memory_is_withheld_from_none_there_are_no_subgroups() -> None:
    assert group(0.0) == [None] * 8
