"""Small runs of a mixture, with each way of drawing tasks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.plan import StageKey
from erl_pipeline.stages.rollouts.select_tasks import SELECTION_FILE
from erl_pipeline.stages.rollouts.task_results import RESULTS_FILE
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.upkeep.verification import verify_run
from tests.erl_pipeline.runs.small_runs import SMALL, go, hashes, ids, small

LAKE: Any = SMALL["environment"]
MIXTURE = {
    "type": "mixture",
    "parts": {
        "large": {"weight": 3, "environment": LAKE},
        "small": {
            "environment": {
                **LAKE,
                "training_boards": 4,
                "rows": [2, 2],
                "holes": [0, 1],
                "twins": "any_split",
            }
        },
    },
}
ROLLOUTS: dict[str, Any] = {"tasks_per_iteration": 4, "group_size": 2, "tasks_per_shard": 2}


def config(selection: Any, **changes: Any) -> RunConfig:
    rollouts = {**ROLLOUTS, "selection": selection}
    return small(environment=MIXTURE, rollouts=rollouts, evaluation={"tasks": 4, "every": 2}, **changes)


def drawn(store: Path, iteration: int) -> list[str]:
    """The tasks of the rollouts, in their order."""
    artifacts, places = ArtifactStore(str(store)), ids(store)
    shards = [places[StageKey(iteration, "rollout_shard", key)] for key in ("0000", "0001")]
    rows = [pl.read_parquet(artifacts.open(each).path("trajectories.parquet")) for each in shards]
    return list(dict.fromkeys(pl.concat(rows)["task_id"]))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the run `small`, whose tasks are drawn by difficulty."""
    store = tmp_path_factory.mktemp("selected") / "store"
    go(config("by_difficulty"), store)
    return store


def test_each_iteration_holds_the_parts_by_their_weights(store: Path) -> None:
    for iteration in (1, 2):
        parts = Counter(task.partition("/")[0] for task in drawn(store, iteration))
        assert parts == {"large": 3, "small": 1}
    manifest = ArtifactStore(str(store)).open(ids(store)[StageKey(1, "generate_rollouts", "")]).manifest
    assert manifest.counters["part.large.episodes"] == 6
    assert manifest.counters["part.small.episodes"] == 2
    assert "part.small.success_first" in manifest.metrics
    evaluated = ArtifactStore(str(store)).open(ids(store)[StageKey(2, "evaluate", "")]).manifest
    assert {"part.large.greedy_success", "part.small.greedy_success"} < evaluated.metrics.keys()
    assert verify_run(ArtifactStore(str(store)), RunStore(str(store)).open("small")).problems == []


def test_what_was_drawn_and_why_is_in_the_artifact(store: Path) -> None:
    artifacts, places = ArtifactStore(str(store)), ids(store)
    first, second = (artifacts.open(places[StageKey(number, "select_tasks", "")]) for number in (1, 2))
    rows = pl.read_parquet(second.path(SELECTION_FILE))
    assert rows["task_id"].to_list() == drawn(store, 2)
    assert set(rows["reason"]) <= {"new", "expected_success"}
    assert rows.filter(reason="new")["tries"].to_list() == [0.0] * rows.filter(reason="new").height
    # From two tries each in the first iteration, without any discount yet.
    assert set(rows.filter(reason="expected_success")["tries"]) <= {2.0}
    known = pl.read_parquet(second.path(RESULTS_FILE))
    assert sorted(known["task_id"]) == sorted(drawn(store, 1))
    assert pl.read_parquet(first.path(RESULTS_FILE)).height == 0
    assert second.manifest.counters["known_iterations"] == 1


def test_a_run_that_was_stopped_after_a_selection_ends_with_the_same_bytes(
    store: Path, tmp_path: Path
) -> None:
    go(config("by_difficulty"), tmp_path, stop_after="select_tasks of iteration 2")
    go(config("by_difficulty"), tmp_path)
    assert hashes(tmp_path) == hashes(store)


@pytest.mark.parametrize(
    "selection", ["uniform", "easy_to_hard", {"type": "easy_to_hard", "by": "results", "over": 2}]
)
def test_the_other_ways(selection: Any, store: Path) -> None:
    name = str(selection).strip("{}").replace("'", "").replace(": ", "-").replace(", ", "_")
    go(config(selection, name=name), store)
    places = ids(store, name)
    if selection == "uniform":
        assert StageKey(1, "select_tasks", "") not in places
        return
    made = ArtifactStore(str(store)).open(places[StageKey(2, "select_tasks", "")])
    rows = pl.read_parquet(made.path(SELECTION_FILE))
    assert set(rows["reason"]) == {"window"}
    assert rows["difficulty" if selection == "easy_to_hard" else "expected_success"].null_count() == 0
