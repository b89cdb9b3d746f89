"""Streamed evaluation in the plan of a run, and on request."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from erl_pipeline.plan.plan import Place
from erl_pipeline.runs.driver import open_run
from erl_pipeline.runs.on_request import evaluate_stream_on_request, with_streams
from erl_pipeline.stages.evaluation.evaluate_stream import SCORES, TRAJECTORIES
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError
from storage.tables.stream_scores import read_stream_scores
from storage.tables.trajectories import scan_trajectories
from tests.command_line.invoke import invoke
from tests.erl_pipeline.runs.planned_runs import at, config, ids, plan, stages
from tests.erl_pipeline.runs.small_runs import SMALL, Notes, go, small
from tests.erl_pipeline.runs.small_runs import ids as committed

REALMS = "environment={type: frozen_lake, actions: realms}"
STREAMS = "evaluation.stream={realms: 2, streams: 3, encounters: 2}"
IN_REALMS = {
    "environment": {**SMALL["environment"], "actions": "realms", "realms": {"training": 3, "held_out": 3}},
    "evaluation": {**SMALL["evaluation"], "stream": {"realms": 2, "streams": 3, "encounters": 2}},
}
TASKS = 2 * 3 * 2


def test_streams_are_played_before_the_first_iteration_and_after_the_last() -> None:
    made = plan(REALMS, STREAMS)
    assert [at for at in range(4) if "evaluate_stream" in stages(made, at)] == [0, 3]


def test_streams_change_nothing_else_of_a_run() -> None:
    without, with_them = ids(plan(REALMS)), ids(plan(REALMS, STREAMS))
    assert {place: id for place, id in with_them.items() if place.stage != "evaluate_stream"} == without


def test_the_runs_seed_may_choose_the_first_policy() -> None:
    def first(*settings: str) -> str:
        return at(plan(*settings), 0, "bootstrap").artifact_id

    assert first("seed=3") == first()
    own = "policy.cold_start.seed=run"
    assert first(own, "seed=3") == first("policy.cold_start.seed=3") != first()
    assert first(own) == first()


def test_streams_without_realms_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"evaluation.stream.realms: 2; allowed: at most the 0 realms"):
        config(STREAMS)
    with pytest.raises(ConfigError, match="at most the 8 realms that the environment holds out"):
        config(REALMS, "evaluation.stream={realms: 9}")
    with pytest.raises(ConfigError, match="at most the 0 realms"):
        with_streams(config())


def test_streams_need_prompts_for_reflections() -> None:
    prose = {"environment": {"type": "frozen_lake", "actions": "realms", "format": "prose"}}
    policy = {"policy": {"type": "pretrained", "model": "some/model"}}
    stream = {"evaluation": {"stream": True}}
    small(**prose, **policy, **stream)
    with pytest.raises(ValidationError, match=r"neither the environment nor method.type: rlvr has prompts"):
        small(**prose, **policy, **stream, method="rlvr")


def test_a_small_run_is_evaluated_in_streams(tmp_path: Path) -> None:
    settings = small(**IN_REALMS, iterations=1)
    go(settings, tmp_path)
    store = ArtifactStore(str(tmp_path))
    before, after = (store.open(committed(tmp_path)[Place(at, "evaluate_stream", "")]) for at in (0, 1))
    scores = read_stream_scores([after.path(SCORES)])
    assert len(scores) == TASKS * 4
    assert [score.condition for score in scores[:4]] == ["none", "own", "oracle", "other"]
    assert {score.realm for score in scores} == {"frozen_lake-r3", "frozen_lake-r4"}
    rows = scan_trajectories([after.path(TRAJECTORIES)]).collect()
    first = rows.filter(role="streamed_attempt")
    assert len(first) == TASKS * 4
    assert set(rows["temperature"]) == {0.0}
    assert {score.first_trajectory_id for score in scores} == set(first["trajectory_id"])
    assert after.manifest.counters["encounters"] == TASKS
    assert before.manifest.policy_version != after.manifest.policy_version
    assert set(after.manifest.metrics) >= {"first_none", "first_own", "first_oracle", "first_other"}

    notes = Notes()
    with open_run(settings, str(tmp_path), notes, notes.stop) as opened:
        outcome = evaluate_stream_on_request(opened, 1, committed(tmp_path)[Place(1, "fine_tune", "")], None)
    asked = store.open(outcome.artifact_id)
    assert (outcome.stage, outcome.iteration) == ("evaluate_stream_on_request", 1)
    # Greedy attempts at the same tasks: the same outcomes.
    again = read_stream_scores([asked.path(SCORES)])
    assert [(s.task_id, s.condition, s.note, s.first_attempt_success, s.retry_success) for s in again] == [
        (s.task_id, s.condition, s.note, s.first_attempt_success, s.retry_success) for s in scores
    ]
    assert go(settings, tmp_path).made == []

    shown = invoke("evaluate", "small", "--stream", "--store", tmp_path)
    assert shown.status == 0, shown.errors
    assert "6 streams in 2 held-out realms" in shown.output
    assert [line.split()[0] for line in shown.output.splitlines() if line.startswith("  ")] == [
        *("note", "none", "own", "oracle", "other") * 2
    ]
    assert invoke("evaluate", "small", "--store", tmp_path).status != 0
