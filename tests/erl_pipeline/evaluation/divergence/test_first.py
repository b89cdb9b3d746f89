"""Where two runs begin to differ, on runs written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.evaluation.first_difference import Divergence, first_divergence
from erl_pipeline.evaluation.history import read_history
from storage.artifacts.recipe import ArtifactKind, Recipe
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.tables.parquet import write_rows
from storage.tables.trajectories import TRAJECTORIES
from tests.histories import trajectory_row

Stage = tuple[str, int | None, ArtifactKind, Mapping[str, Any], float]
"""Name, iteration, kind, settings, and the reward of its one row."""

BEGIN: Stage = ("bootstrap", None, "checkpoint", {"seed": 1}, 0.0)


def divergence(folder: Path, a: Sequence[Stage], b: Sequence[Stage]) -> Divergence:
    store, runs = ArtifactStore(str(folder)), RunStore(str(folder))
    histories = []
    for name, stages in (("a", a), ("b", b)):
        run = runs.create(name, {"name": name})
        for stage, iteration, kind, settings, reward in stages:
            recipe = Recipe(stage, 1, dict(settings), {}, 0, kind=kind)
            if store.find(recipe.artifact_id) is None:
                with store.create(recipe, run=name, iteration=iteration) as staging:
                    row = trajectory_row(trajectory_id=recipe.artifact_id, reward=reward)
                    write_rows(staging.path / "rows.parquet", [row], TRAJECTORIES)
                    staging.commit()
            run.record(iteration, stage, recipe.artifact_id, kind=kind, reused=False, seconds=0.0)
        histories.append(read_history(store, run))
    return first_divergence(store, *histories)


def shard(iteration: int, samples: int, reward: float) -> Stage:
    settings = {"iteration": iteration, "samples": samples}
    return "rollout_shard", iteration, "trajectories", settings, reward


def test_runs_that_share_everything_do_not_part(tmp_path: Path) -> None:
    found = divergence(tmp_path, [BEGIN, shard(1, 4, 0.5)], [BEGIN, shard(1, 4, 0.5)])
    assert (found.shared, found.parting, found.at, found.content) == (2, None, None, None)


def test_another_recipe_comes_first_and_other_content_later(tmp_path: Path) -> None:
    a = [BEGIN, shard(1, 4, 0.5), shard(2, 4, 0.5)]
    b = [BEGIN, shard(1, 8, 0.5), shard(2, 8, 1.0)]
    found = divergence(tmp_path, a, b)
    assert found.parting is not None
    assert found.at is not None
    assert found.content is not None
    assert (found.shared, found.parting.place.iteration, found.parting.recipe) == (1, 1, ("samples: 4 -> 8",))
    assert (found.alike, found.at.place.iteration) == (1, 2)
    assert (found.content.row, found.content.column, found.content.a) == (0, "reward", "0.5")


@pytest.mark.parametrize("longer", ["a", "b"])
def test_a_run_that_ends_earlier_parts_where_it_ends(tmp_path: Path, longer: str) -> None:
    runs = {"a": [BEGIN], "b": [BEGIN], longer: [BEGIN, shard(1, 4, 0.5)]}
    found = divergence(tmp_path, runs["a"], runs["b"])
    assert found.at is not None
    assert found.at.place.iteration == 1
    assert (found.at.a is None, found.at.b is None) == (longer == "b", longer == "a")
    assert found.content is None
