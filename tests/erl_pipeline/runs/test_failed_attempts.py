"""Runs in which an environment fails once: dropped, played again, or counted as zero."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from erl_pipeline.environments.interface import Observation, Transition
from erl_pipeline.environments.messages import AssistantTurn
from erl_pipeline.episodes.guarded_environment import GuardedEnvironment
from erl_pipeline.episodes.play import PlayedEpisodes
from erl_pipeline.plan.stage import StageCall
from erl_pipeline.stages.evaluation import evaluate
from erl_pipeline.stages.names import TRAJECTORIES
from erl_pipeline.stages.rollouts import generate_rollouts
from erl_pipeline.stages.rollouts.playing import play_with_checkpoint
from storage.artifacts.artifact import Artifact
from storage.artifacts.store import ArtifactStore
from storage.tables.training import TRAINING_RECORD_FILE
from tests.erl_pipeline.runs.small_runs import SMALL, go, hashes, ids, small

FAILED = "environment_error"


def run(store: Path, failed: str, patch: pytest.MonkeyPatch, *, fails: bool) -> Path:
    """A run of one iteration, in which the third step that an environment does may fail."""
    step, steps = GuardedEnvironment.step, [0]

    async def stepped(self: GuardedEnvironment, turn: AssistantTurn) -> Transition:
        steps[0] += 1
        if fails and steps[0] == 3:
            raise self._failed("step", ConnectionError("no server"))
        return await step(self, turn)

    patch.setattr(GuardedEnvironment, "step", stepped)
    rollouts = {**SMALL["rollouts"], "failed": failed}
    go(small(rollouts=rollouts, iterations=1, evaluation={"tasks": 2, "every": 2}), store)
    patch.undo()
    return store


def made(store: Path, stage: str) -> list[Artifact]:
    opened = ArtifactStore(str(store))
    return [opened.open(each) for place, each in ids(store).items() if place.stage == stage]


def ends(store: Path) -> list[str]:
    """How the trajectories of the rollouts and of the evaluations ended, where it was not as usual."""
    files = [each.path(TRAJECTORIES) for each in made(store, "rollout_shard")]
    files += [each.path("evaluation.parquet") for each in made(store, "evaluate")]
    found = pl.concat([pl.read_parquet(file) for file in files])["finish_reason"]
    return [each for each in found if each.startswith("environment_")]


def test_a_failure_that_passes_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(tmp_path / "whole", "retry", monkeypatch, fails=False)
    failed = run(tmp_path / "failed", "retry", monkeypatch, fails=True)
    assert hashes(failed) == hashes(whole)
    assert ends(failed) == []


@pytest.mark.parametrize(
    ("failed", "end"), [("drop", "environment_error"), ("zero", "environment_error_as_zero")]
)
def test_a_failure_stays_in_the_table(
    failed: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ends(run(tmp_path / "store", failed, monkeypatch, fails=True)) == [end]


@pytest.mark.parametrize("method", ["erl", "rlvr", "complementary"])
@pytest.mark.parametrize(
    ("failed", "end", "why"),
    [
        ("drop", "environment_error", "environment_error"),
        ("zero", "environment_error_as_zero", "no_tokens"),
    ],
)
def test_an_attempt_that_did_not_begin_has_a_row_without_tokens(
    failed: str, end: str, why: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The prompt of each of the sixteen training tasks is measured first.
    reset, failures = GuardedEnvironment.reset, [*[None] * 16, ConnectionError("no server")]

    async def begun(self: GuardedEnvironment) -> Observation:
        if playing and failures and (failure := failures.pop(0)):
            raise self._failed("reset", failure)
        return await reset(self)

    def played(*args: Any, **named: Any) -> PlayedEpisodes:
        playing.append(True)
        try:
            return play_with_checkpoint(*args, **named)
        finally:
            playing.pop()

    playing: list[bool] = []  # Evaluations are not to fail.
    monkeypatch.setattr(GuardedEnvironment, "reset", begun)
    monkeypatch.setattr(generate_rollouts, "play_with_checkpoint", played)
    rollouts = {**SMALL["rollouts"], "failed": failed}
    evaluation = {"tasks": 2, "every": 2}
    go(small(method=method, rollouts=rollouts, evaluation=evaluation), tmp_path)
    assert ends(tmp_path) == [end]
    rows = pl.concat([pl.read_parquet(each.path(TRAJECTORIES)) for each in made(tmp_path, "rollout_shard")])
    (row,) = rows.filter(pl.col("finish_reason") == end).to_dicts()
    assert (row["prompt_token_ids"], row["response_token_ids"]) == ([], [])
    updates = made(tmp_path, "update_policy") + made(tmp_path, "weighted_update")
    records = pl.concat([pl.read_parquet(each.path(TRAINING_RECORD_FILE)) for each in updates])
    record = records.filter(pl.col("trajectory_id") == row["trajectory_id"])
    assert record["not_trained"].to_list() == [why]


def test_an_evaluation_leaves_out_the_task_whose_attempt_was_not_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def played(call: StageCall[Any], *args: Any, **named: Any) -> PlayedEpisodes:
        """The greedy attempt at the first task was not scored; the other tasks failed."""
        found = play_with_checkpoint(call, *args, **named)
        greedy = named.get("temperature") == 0.0 and named.get("with_memory", True) is False
        first = found.rows[0].task_id
        rows = [
            replace(row, reward=0.0, success=False, finish_reason=FAILED if row.task_id == first else "done")
            for row in found.rows
            if row.parent_trajectory_id is None
        ]
        return replace(found, rows=rows) if greedy else found

    monkeypatch.setattr(evaluate, "play_with_checkpoint", played)
    evaluation = {"tasks": 4, "every": 1, "samples_per_task": 1, "whole_episodes": True}
    go(small(iterations=1, evaluation=evaluation), tmp_path / "store")
    for artifact in made(tmp_path / "store", "evaluate"):
        assert artifact.manifest.metrics["greedy_success"] == 0.0
        assert artifact.manifest.metrics["greedy_success_left_out"] == 1
        assert artifact.manifest.counters["environment_errors"] == 1
    after = made(tmp_path / "store", "evaluate")[-1]
    attempts = pl.read_parquet(after.path(evaluate.EVALUATION))
    unknown = attempts.filter(pl.col("finish_reason") == FAILED)["task_id"].to_list()
    again = set(pl.read_parquet(after.path(evaluate.WITH_MEMORY))["task_id"])
    # Only what is known to have failed is played again with the memory.
    assert again == set(attempts["task_id"]) - set(unknown)
