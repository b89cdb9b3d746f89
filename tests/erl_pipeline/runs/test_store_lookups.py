"""By which runs of a store it is known what stages take, on runs written by hand."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.plan import Plan
from erl_pipeline.plan.sources import read_sources
from erl_pipeline.runs.disk import DiskWatch, expected_sizes, forecast_disk
from erl_pipeline.runs.driver import open_run
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.runs.store_lookups import StoreLookups
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from tests.erl_pipeline.runs.small_runs import SMALL, Notes, small

WIDER = {"policy": {**SMALL["policy"], "hidden_size": 128}}
LONGER_START = {"policy": {**SMALL["policy"], "cold_start": {"steps": 40}}}
LARGER_LAKE = {"environment": {**SMALL["environment"], "rows": [4, 4]}}


def record(store: Path, name: str, sizes: dict[str, int], **changes: Any) -> None:
    """A run that has an artifact of so many bytes for each stage."""
    config = small(name=name, **changes)
    run = RunStore(str(store)).create(name, config.model_dump(mode="json"))
    for stage, size in sizes.items():
        recipe = Recipe(stage, 1, {"of": name}, {}, 0, kind="table")
        with ArtifactStore(str(store)).create(recipe, run=name, iteration=1) as staging:
            (staging.path / "content").write_bytes(b"x" * size)
            staging.commit()
        run.record(1, stage, recipe.artifact_id, kind="table", reused=False, seconds=1.0)


def measured(store: Path, config: RunConfig, stage: str) -> tuple[str, float | None]:
    """The run by which a stage is known, and the expected bytes of its artifact."""
    lookups = StoreLookups(str(store), config.model_dump(mode="json"))
    size = lookups.size(stage)
    expected = None if size is None else size.bytes
    assert lookups.cost(stage).bytes == expected
    return lookups.measured(stage)[0], expected


def planned(config: RunConfig) -> Plan:
    return plan_run(config, read_sources(config))


def test_a_runs_own_artifacts_count_before_those_of_newer_runs(tmp_path: Path) -> None:
    record(tmp_path, "small", {"fine_tune": 10})
    record(tmp_path, "newer", {"fine_tune": 20, "evaluate": 30})
    assert measured(tmp_path, small(), "fine_tune") == ("small", 10)
    assert measured(tmp_path, small(), "evaluate") == ("newer", 30)


def test_runs_of_another_model_tell_nothing(tmp_path: Path) -> None:
    record(tmp_path, "small", {"fine_tune": 10}, **WIDER)
    record(tmp_path, "wide", {"fine_tune": 20}, **WIDER)
    assert measured(tmp_path, small(), "fine_tune") == ("", None)
    assert measured(tmp_path, small(**WIDER), "fine_tune") == ("small", 10)


def test_of_runs_with_the_same_model_those_with_the_same_environment_come_first(tmp_path: Path) -> None:
    record(tmp_path, "alike", {"fine_tune": 10}, seed=3, **LONGER_START)
    record(tmp_path, "lake", {"fine_tune": 20}, **LARGER_LAKE, **LONGER_START)
    assert measured(tmp_path, small(), "fine_tune") == ("alike", 10)
    lookups = StoreLookups(str(tmp_path), small().model_dump(mode="json"))
    assert lookups.groups_alike("alike") == ("environment", "trainer")
    assert lookups.groups_alike("lake") == ("trainer",)


def test_a_model_that_no_run_has_trained_is_counted_by_its_size(tmp_path: Path) -> None:
    """Two blocks of width 128 have 2 * (12 * 128 * 128 + 13 * 128) = 396,544 weights of 4 bytes."""
    record(tmp_path, "small", {"fine_tune": 10, "evaluate": 10})
    wide = small(name="wide", policy={**WIDER["policy"], "layers": 2})
    lookups = StoreLookups(str(tmp_path), wide.model_dump(mode="json"))
    sizes = expected_sizes(wide, planned(wide).nodes, lookups)
    assert {name: (size.bytes, size.estimated) for name, size in sizes.items()} == {
        "bootstrap": (1_586_176, True),
        "update_policy": (4_758_528, True),
        "fine_tune": (4_758_528, True),
    }


@pytest.mark.parametrize("name", ["small", "another"])
def test_train_expects_the_disk_space_that_plan_expects(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(10**9, 0, 7_000_000))
    record(tmp_path, "small", {"fine_tune": 3_000_000})
    record(tmp_path, "wide", {"fine_tune": 10, "update_policy": 10}, **WIDER)
    config, notes = small(name=name), Notes()
    plan = planned(config)
    lookups = StoreLookups(str(tmp_path), config.model_dump(mode="json"))
    need = forecast_disk(plan.nodes, expected_sizes(config, plan.nodes, lookups), {})
    assert need.peak > 7_000_000
    with open_run(config, str(tmp_path), notes, notes.stop) as opened:
        DiskWatch(opened, plan).before_run()
    (warning,) = notes.warnings
    assert f"needs about {need.peak / 1e6:,.1f} MB" in warning
