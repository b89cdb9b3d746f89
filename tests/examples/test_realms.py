"""Streamed evaluation of a run, from its command."""

from __future__ import annotations

from pathlib import Path

import pytest
from realms.command import evaluate
from realms.scores import read_stream_scores
from realms.stage import SCORES, TRAJECTORIES, evaluate_streams
from realms.tasks import StreamConfig

from erl_pipeline.evaluation.history import read_history
from erl_pipeline.plan.plan import StageKey
from erl_pipeline.runs.driver import open_run
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError
from storage.runs.run import RunStore
from storage.tables.trajectories import scan_trajectories
from tests.erl_pipeline.runs.small_runs import SMALL, Notes, go, ids, small

IN_REALMS = {
    "environment": {**SMALL["environment"], "actions": "realms", "realms": {"training": 3, "held_out": 3}}
}
TASKS = 2 * 3 * 2


def test_what_has_no_realms_or_no_prompts_for_reflections_is_refused(tmp_path: Path) -> None:
    other = {"environment": {"type": "sokoban"}}
    with pytest.raises(ConfigError, match=r"environment\.type: sokoban has no realms; frozen_lake has"):
        refuse(tmp_path / "a", **other)
    prose = {"environment": {"type": "frozen_lake", "actions": "realms", "format": "prose"}}
    policy = {"policy": {"type": "pretrained", "model": "some/model"}}
    with pytest.raises(ConfigError, match=r"neither the environment nor method.type: rlvr has prompts"):
        refuse(tmp_path / "b", **prose, **policy, method="rlvr")


def refuse(store: Path, **settings: object) -> None:
    notes = Notes()
    with open_run(small(**settings), str(store), notes, notes.stop) as opened:
        evaluate_streams(opened, 0, "checkpoint", None, StreamConfig())


def test_a_small_run_is_evaluated_in_streams(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = small(**IN_REALMS, iterations=1)
    go(settings, tmp_path)
    store, run = ArtifactStore(str(tmp_path)), RunStore(str(tmp_path)).open("small")
    evaluate("small", store=str(tmp_path), realms=2, streams=3, encounters=2)
    entry = run.stages()[-1]
    assert (entry.stage, entry.iteration) == ("evaluate_stream_on_request", 1)
    after = store.open(entry.artifact_id)
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
    assert after.manifest.policy_version == ids(tmp_path)[StageKey(1, "fine_tune", "")]
    assert set(after.manifest.metrics) >= {"first_none", "first_own", "first_oracle", "first_other"}
    shown = capsys.readouterr().out
    assert "6 streams in 2 held-out realms" in shown
    assert [line.split()[0] for line in shown.splitlines() if line.startswith("  ")] == [
        *("note", "none", "own", "oracle", "other") * 2
    ]

    # It is no part of the run's plan, and an evaluation of another checkpoint is another artifact.
    assert go(settings, tmp_path).made == []
    assert [record.stage for record in read_history(store, run) if record.on_request] == [entry.stage]
    evaluate("small", checkpoint="iteration:0", store=str(tmp_path), realms=2, streams=3, encounters=2)
    before = store.open(run.stages()[-1].artifact_id)
    assert before.manifest.policy_version == ids(tmp_path)[StageKey(0, "bootstrap", "")]
