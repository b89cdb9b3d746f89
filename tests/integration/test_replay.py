"""A small run with replay: the same bytes, wherever it is resumed, branched or killed."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import polars as pl
import pytest
import yaml

from erl_pipeline.evaluation.samples import count_samples
from erl_pipeline.plan.plan import StageKey
from erl_pipeline.plan.stage import Listener
from erl_pipeline.runs.audit import audit
from erl_pipeline.runs.origins import begin_branch
from erl_pipeline.stages.training.replay.replayed import REPLAYED_FILE
from storage.artifacts.store import ArtifactStore
from storage.lineage.reach import downstream, upstream
from storage.runs.documents import BranchOrigin
from storage.runs.run import RunStore
from storage.tables.training import TRAINING_RECORD_FILE
from storage.tables.trajectories import read_trajectories
from storage.upkeep.verification import verify_run
from tests.erl_pipeline.runs.small_runs import SMALL, go, hashes, ids, small
from tests.integration.killing import train_to_the_end, train_until

REPLAYING = {
    "method": "rlvr",
    "replay": {"start_success": 0.0},
    # Every iteration draws all four boards, so that old attempts are replayed too.
    # The goal is one move away and a group has eight attempts, so that about a third of them succeed.
    "environment": {**SMALL["environment"], "training_boards": 4, "path_length": [1, 1], "max_steps": 4},
    "policy": {**SMALL["policy"], "cold_start": {"steps": 20, "demonstrations_per_step": 8}},
    "rollouts": {"tasks_per_iteration": 4, "group_size": 8, "tasks_per_shard": 2},
    "iterations": 4,
    "evaluation": {"tasks": 2, "every": 4},
}


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the run `small`; it must not be changed."""
    store = tmp_path_factory.mktemp("replayed") / "store"
    go(small(**REPLAYING), store)
    return store


def replay_of(store: Path, run: str, iteration: int) -> str:
    return ids(store, run)[StageKey(iteration, "select_replay", "")]


def test_what_was_replayed_was_trained_in_the_group_of_fresh_attempts(replayed: Path) -> None:
    store = ArtifactStore(str(replayed))
    selection = store.open(replay_of(replayed, "small", 4))
    rows = read_trajectories([selection.path("replay/trajectories.parquet")])
    assert rows
    update = store.open(ids(replayed)[StageKey(4, "update_policy", "")]).manifest
    assert update.inputs["replay"] == selection.manifest.artifact_id
    assert update.counters["replayed_sequences"] <= len(rows)
    generated = store.open(ids(replayed)[StageKey(4, "generate_rollouts", "")]).manifest
    assert generated.counters["episodes"] == 4 * 8 - len(rows)
    entropies = pl.read_parquet(selection.path("replay/selection.parquet"))["entropy"]
    assert entropies.null_count() == 0


def test_the_run_is_whole_and_a_replayed_row_leads_to_its_source(replayed: Path) -> None:
    store, runs = ArtifactStore(str(replayed)), RunStore(str(replayed))
    assert verify_run(store, runs.open("small")).problems == []
    selection = store.open(replay_of(replayed, "small", 4))
    row = read_trajectories([selection.path("replay/trajectories.parquet")])[0]
    above = upstream(store, runs.open("small"), row.trajectory_id)
    assert row.parent_trajectory_id in [thing.id for thing in above.things if thing.kind == "trajectory"]
    below = downstream(store, runs.open("small"), row.trajectory_id)
    assert below.trained == (ids(replayed)[StageKey(4, "update_policy", "")],)


def test_every_stage_computes_the_same_bytes_again(replayed: Path, tmp_path: Path) -> None:
    results = audit(
        str(replayed), "small", 1, "generate_rollouts", 4, tmp_path, Listener(), threading.Event()
    )
    assert {each.verdict for each in results} == {"equal"}
    assert {"select_replay", "index_experience"} <= {each.stage for each in results}


def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(replayed: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    for stage in ("index_experience of iteration 1", "select_replay of iteration 3"):
        go(small(**REPLAYING), store, stop_after=stage)
    go(small(**REPLAYING), store)
    assert hashes(store) == hashes(replayed)


def test_a_branch_replays_what_it_shares(replayed: Path, tmp_path: Path) -> None:
    store = Path(shutil.copytree(replayed, tmp_path / "store"))
    origin = BranchOrigin(run="small", iteration=3, stage="update_policy")
    other = {**REPLAYING, "name": "other", "replay": {"start_success": 0.0, "shaping_beta": False}}
    notes = go(small(**other), store, begin=partial(begin_branch, origin=origin))
    assert notes.made[0] == "update_policy of iteration 3"
    assert replay_of(store, "other", 3) == replay_of(store, "small", 3)
    assert replay_of(store, "other", 4) != replay_of(store, "small", 4)


def test_an_update_leaves_out_what_is_too_old_and_every_sample_is_counted(
    replayed: Path, tmp_path: Path
) -> None:
    """The update of iteration 4 with a limit of one iteration. It trains on what was sampled in iterations 3
    and 4, by the policies of iterations 2 and 3. It leaves out what older policies sampled in iterations 1
    and 2."""
    store = Path(shutil.copytree(replayed, tmp_path / "store"))
    origin = BranchOrigin(run="small", iteration=4, stage="update_policy")
    aged = {**REPLAYING, "name": "aged", "pipeline": {"max_age": 1, "too_old": "drop"}}
    notes = go(small(**aged), store, begin=partial(begin_branch, origin=origin))
    assert notes.made == ["update_policy of iteration 4", "evaluate of iteration 4"]

    artifacts, made = ArtifactStore(str(store)), ids(store, "aged")
    rows = read_trajectories([artifacts.open(made[StageKey(4, "select_replay", "")]).path(REPLAYED_FILE)])
    policies = [made[StageKey(iteration, "update_policy", "")] for iteration in (2, 3)]
    old = {row.trajectory_id for row in rows if row.policy_version not in policies}
    assert old
    update = artifacts.open(made[StageKey(4, "update_policy", "")])
    assert update.manifest.counters["dropped_too_old"] == len(old)
    record = pl.read_parquet(update.path(TRAINING_RECORD_FILE))
    assert set(record.filter(not_trained="too_old")["trajectory_id"]) == old
    report = count_samples(artifacts, RunStore(str(store)).open("aged"), (4, 4))
    assert report.problems == []
    assert [each.dropped.get("too_old") for each in report.counts if each.role == "replay"] == [len(old)]


def _writing(store: Path, folder: str) -> Callable[[], bool]:
    """The moment when a stage has begun to write this folder of its artifact."""
    return lambda: any((store / "staging").glob(f"*/files/{folder}"))


def _published(store: Path, stage: str, count: int) -> Callable[[], bool]:
    """The moment when a stage has this many artifacts; the last may be missing in the ledger."""
    return lambda: len(list((store / "artifacts" / stage).glob("*"))) >= count


@pytest.mark.slow
def test_a_kill_in_a_stage_of_replay_changes_no_byte(replayed: Path, tmp_path: Path) -> None:
    config, store = tmp_path / "small.yaml", tmp_path / "store"
    config.write_text(yaml.safe_dump({**SMALL, **REPLAYING}))
    moments = [
        _writing(store, "experience"),
        _published(store, "index_experience", 1),
        _writing(store, "replay"),
        _published(store, "select_replay", 2),
    ]
    assert all(train_until(config, store, moment) for moment in moments)
    train_to_the_end(config, store)
    assert hashes(store) == hashes(replayed)
    assert list((store / "staging").iterdir()) == []
