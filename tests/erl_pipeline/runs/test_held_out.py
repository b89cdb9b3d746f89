"""Held-out tasks: how they are evaluated with memory, and that no policy is trained on them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.interface import Task
from erl_pipeline.plan.plan import StageKey
from erl_pipeline.runs.driver import open_run
from erl_pipeline.runs.origins import begin_offline, import_trajectories
from erl_pipeline.stages.evaluation.evaluate import EVALUATION, WITH_MEMORY
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.runs.documents import OfflineOrigin
from storage.runs.run import RunStore
from storage.upkeep.verification import verify_run
from tests.erl_pipeline.runs.small_runs import DECOUPLED, SMALL, Notes, go, ids, small


def evaluated_rows(store: Path) -> pl.DataFrame:
    """Sampled first attempts of the run's last evaluation, in the form of rows to import."""
    evaluation = ArtifactStore(str(store)).open(ids(store)[StageKey(2, "evaluate", "")])
    return pl.read_parquet(evaluation.path(EVALUATION)).filter(pl.col("temperature") > 0)


def begin(store: Path, run: str, **changes: Any) -> None:
    origin = OfflineOrigin(run=run, first_iteration=2, last_iteration=2, checkpoint_id=None, evaluates=False)
    notes = Notes()
    with open_run(small(name="taught", **DECOUPLED, **changes), str(store), notes, notes.stop) as opened:
        partial(begin_offline, origin=origin)(opened)


def test_imported_rows_of_a_held_out_task_are_refused_by_row(store: Path, tmp_path: Path) -> None:
    rows = evaluated_rows(store)
    task = rows["task_id"][1]
    # The same board with another task id and another number of steps.
    disguised = pl.col("task_payload").str.replace('"max_steps": 2', '"max_steps": 5')
    rows = rows.with_columns(task_id=pl.lit("mine"), task_payload=disguised)
    harmless = rows[:1].with_columns(task_payload=pl.lit("{}"))
    pl.concat([harmless, rows[1:]]).write_parquet(tmp_path / "rows.parquet")
    import_trajectories(str(store), tmp_path / "rows.parquet", "theirs")
    said = f"run theirs, iteration 2, row 2 .* task mine\\) is of the held-out task {task}"
    with pytest.raises(InputError, match=said):
        begin(store, "theirs")
    assert "taught" not in RunStore(str(store)).list() or not RunStore(str(store)).open("taught").stages()


def refused(store: Path, folder: Path, **columns: str) -> None:
    """Import one evaluated row with these values, and begin a run with a test split on it."""
    row = evaluated_rows(store)[:1].with_columns(**{name: pl.lit(value) for name, value in columns.items()})
    row.write_parquet(folder / "rows.parquet")
    import_trajectories(str(store), folder / "rows.parquet", "theirs")
    begin(store, "theirs", environment={**SMALL["environment"], "test_boards": 3})


def payload_of(task: Task) -> str:
    return json.dumps(dict(task.payload))


def settings() -> FrozenLakeConfig:
    return FrozenLakeConfig.model_validate({**SMALL["environment"], "test_boards": 3})


@pytest.mark.parametrize("environment", ["frozen-lake", "", "sokoban"])
def test_the_name_of_the_environment_does_not_count(store: Path, tmp_path: Path, environment: str) -> None:
    task = ENVIRONMENT.held_out_tasks(settings(), 0, 1)[0]
    with pytest.raises(InputError, match=f"is of the held-out task {task.task_id}"):
        refused(store, tmp_path, environment=environment, task_payload=payload_of(task), task_id="mine")


def test_held_out_tasks_that_the_run_does_not_evaluate_are_refused_too(store: Path, tmp_path: Path) -> None:
    """The run evaluates 2 tasks; later `evaluate --count` may take more."""
    task = ENVIRONMENT.held_out_tasks(settings(), 0, 12)[11]
    with pytest.raises(InputError, match="task mine\\) is of a task of the held-out split"):
        refused(store, tmp_path, task_payload=payload_of(task), task_id="mine")


def test_test_tasks_are_refused(store: Path, tmp_path: Path) -> None:
    task = ENVIRONMENT.splits.test_tasks(settings(), 0)[2]
    with pytest.raises(InputError, match="task mine\\) is of a task of the test split"):
        refused(store, tmp_path, task_payload=payload_of(task), task_id="mine")


def test_a_row_without_content_is_refused_where_it_names_a_held_out_task(store: Path, tmp_path: Path) -> None:
    task = ENVIRONMENT.held_out_tasks(settings(), 0, 1)[0]
    with pytest.raises(InputError, match=f"is of the held-out task {task.task_id}"):
        refused(store, tmp_path, task_payload="{}", task_id=task.task_id)


def test_rows_of_training_tasks_are_taken(store: Path) -> None:
    begin(store, "small")
    assert RunStore(str(store)).open("taught").stages()


def test_whole_episodes_are_played_without_memory_and_again_with_it(tmp_path: Path) -> None:
    evaluation = {"tasks": 4, "every": 1, "whole_episodes": True}
    go(small(evaluation=evaluation, iterations=1), tmp_path)
    artifacts, places = ArtifactStore(str(tmp_path)), ids(tmp_path)
    memory = places[StageKey(1, "index_memory", "")]
    before, after = (artifacts.open(places[StageKey(iteration, "evaluate", "")]) for iteration in (0, 1))
    assert [file.path for file in before.files] == [EVALUATION]
    assert (before.manifest.memory_version, after.manifest.memory_version) == (None, memory)

    plain = pl.read_parquet(after.path(EVALUATION))
    again = pl.read_parquet(after.path(WITH_MEMORY))
    assert set(plain["memory_version"]) == {""}
    failed = plain.filter(pl.col("role") == "first_attempt", ~pl.col("success"))["task_id"]
    assert set(again["task_id"]) == set(failed)
    reflected = again.filter(role="reflection")
    assert reflected.height > 0
    assert set(reflected["memory_version"]) == {memory}
    assert set(again.filter(role="first_attempt")["memory_version"]) == {""}
    names = {"greedy_success", "success_episode", "success_episode_with_memory"}
    assert names <= after.manifest.metrics.keys()
    assert verify_run(artifacts, RunStore(str(tmp_path)).open("small")).problems == []
