"""Retention of old iterations: the driver prunes between iterations, and the run ends with the same
result."""

from __future__ import annotations

import shutil
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from erl_pipeline.plan import sources
from erl_pipeline.plan.plan import Plan, StageKey
from erl_pipeline.plan.plugin_code import plugin_fingerprints
from erl_pipeline.plan.sources import unread_sources
from erl_pipeline.plan.stage import Listener
from erl_pipeline.runs.audit import audit
from erl_pipeline.runs.driver import open_run
from erl_pipeline.runs.on_request import evaluate_on_request
from erl_pipeline.runs.origins import begin_branch, begin_offline
from erl_pipeline.runs.retention import retain_run, still_needed
from erl_pipeline.runs.run_plans import plan_run
from storage.artifacts import writing
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError, RunBusy
from storage.runs.documents import BranchOrigin, OfflineOrigin
from storage.runs.run import RunStore
from storage.upkeep.collection import collect
from storage.upkeep.verification import verify_run
from tests.erl_pipeline.runs.small_runs import DECOUPLED, Notes, go, hashes, ids, small

ALL = {"checkpoints": 1, "optimizer": 1, "trajectories": 1}
WEIGHTS, OPTIMIZER = "model/model.safetensors", "optimizer.safetensors"


def pruned(store: Path, run: str = "small") -> dict[tuple[int, str], list[str]]:
    """The pruned files of each artifact of a run; artifacts without pruned files are left out."""
    artifacts = ArtifactStore(str(store))
    found = {}
    for place, artifact_id in ids(store, run).items():
        files = artifacts.open(artifact_id).pruned.files
        if files:
            found[place.iteration, f"{place.stage} {place.key}".strip()] = [file.path for file in files]
    return found


def test_a_run_prunes_between_iterations_and_ends_with_the_same_bytes(store: Path, tmp_path: Path) -> None:
    go(small(retention=ALL), store, 4)
    lost = {
        (iteration, stage): files
        for iteration in (1, 2, 3)
        for stage, files in {
            "update_policy": [WEIGHTS, OPTIMIZER],
            "fine_tune": [WEIGHTS, OPTIMIZER],
            "rollout_shard 0000": ["trajectories.parquet"],
            "rollout_shard 0001": ["trajectories.parquet"],
        }.items()
    }
    assert {place: sorted(files) for place, files in pruned(store).items()} == lost
    assert verify_run(ArtifactStore(str(store)), RunStore(str(store)).open("small")).problems == []
    whole = tmp_path / "whole"
    go(small(), whole, 4)
    assert hashes(store) == hashes(whole)


def test_what_another_run_has_stays(store: Path) -> None:
    go(small(name="other"), store, 1)
    go(small(retention=ALL), store, 3)
    assert sorted({iteration for iteration, _ in pruned(store)}) == [2]
    assert pruned(store, "other") == {}


def test_maintenance_applies_the_rules_of_a_run_that_nobody_works_on(store: Path) -> None:
    go(small(name="kept", retention={"checkpoints": "1,every:2"}), store, 3)
    run = RunStore(str(store)).open("kept")
    artifacts = ArtifactStore(str(store))
    with run.lock(), pytest.raises(RunBusy):
        retain_run(artifacts, run)
    # Its first two iterations are those of `small`, which has been removed.
    (store / "runs/small/run.json").unlink()
    for path in (store / "runs/small").glob("ledger.*"):
        path.unlink()
    gone = retain_run(artifacts, run)
    assert {(each.manifest.iteration, each.files) for each in gone} == {(1, (WEIGHTS,))}
    assert {each.reason for each in gone} == {"the rule retention.checkpoints 1,every:2"}
    assert retain_run(ArtifactStore(str(store)), run) == []


def test_a_kill_while_files_go_leaves_a_sound_store_and_the_run_goes_on(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    for step in ("replace_file", "remove"):  # before the record is written, and before the files are removed
        with monkeypatch.context() as patched:
            patched.setattr(writing, step, killed)
            with pytest.raises(KeyboardInterrupt):
                go(small(retention={"trajectories": 1}), store, 3)
        artifacts = ArtifactStore(str(store))
        assert verify_run(artifacts, RunStore(str(store)).open("small")).problems == []
        (left,) = collect(str(store), timedelta(hours=1)).leftovers
        assert left.kind == {"replace_file": "half pruned", "remove": "pruned, and still there"}[step]
    assert go(small(retention=ALL), store, 4).warnings == []
    assert verify_run(ArtifactStore(str(store)), RunStore(str(store)).open("small")).problems == []


def test_an_audit_says_what_retention_makes_impossible(store: Path, tmp_path: Path) -> None:
    go(small(retention={"optimizer": 1}), store, 3)
    scratch, stop = tmp_path / "scratch", threading.Event()
    results = audit(str(store), "small", 2, "build_distillation", 3, scratch, Listener(), stop)
    verdicts = {(each.iteration, each.stage): each.verdict for each in results}
    # The fine-tuning of iteration 2 reads the optimizer state of its update, and the update of 3 reads the
    # state of that fine-tuning.
    assert [place for place, verdict in verdicts.items() if verdict == "input pruned"] == [
        (2, "fine_tune"),
        (3, "update_policy"),
    ]
    (told,) = [each.differences for each in results if (each.iteration, each.stage) == (2, "fine_tune")]
    assert OPTIMIZER in told[0]
    assert "the rule retention.optimizer 1" in told[0]
    assert verdicts[3, "fine_tune"] == "equal"


def test_a_continuation_computes_again_what_retention_has_removed(store: Path, tmp_path: Path) -> None:
    """The update of iteration 3 was deleted by hand. It reads the optimizer state of the fine-tuning before
    it, which reads that of its update, and so on back to iteration 1: five artifacts are made again."""
    go(small(retention={"optimizer": "1"}), store, 3)
    whole = hashes(store)
    lost = ids(store)[StageKey(3, "update_policy", "")]
    shutil.rmtree(store / "artifacts/update_policy" / lost)
    notes = go(small(), store, 3)
    made = [f"{stage} of iteration {n}" for n in (1, 2) for stage in ("update_policy", "fine_tune")]
    assert notes.made == [*made, "update_policy of iteration 3"]
    gone, *needs = notes.warnings
    assert (
        gone == f"update_policy of iteration 3 ({lost}) is gone from the store, or damaged. It is made again."
    )
    assert [need.partition(" reads ")[0] for need in needs] == [
        "update_policy of iteration 3",
        *(title for title in reversed(made[1:])),
    ]
    assert all(need.endswith("bytes are gone. It is made again.") for need in needs)
    assert hashes(store) == whole
    assert not any(OPTIMIZER in files for files in pruned(store).values())
    assert verify_run(ArtifactStore(str(store)), RunStore(str(store)).open("small")).problems == []


def lagging(lag: int, iterations: int) -> Plan:
    config = small(pipeline={"lag": lag}, **DECOUPLED)
    return plan_run(config, unread_sources(config), iterations=iterations)


@pytest.mark.parametrize(("lag", "oldest"), [(0, 3), (1, 2), (2, 1)])
def test_checkpoints_that_later_rollouts_sample_from_stay(lag: int, oldest: int) -> None:
    """After iteration 3, iteration 4 samples from the checkpoint of 3 - lag."""
    plan = lagging(lag, 4 + lag)
    recorded = {node.place: node.artifact_id for node in plan.nodes if node.place.iteration <= 3}
    needed = still_needed(plan, recorded, lambda _artifact_id: True)
    tuned = [
        node.place.iteration
        for node in plan.nodes
        if node.stage.name == "fine_tune" and node.artifact_id in needed and node.place in recorded
    ]
    assert min(tuned) == oldest


def test_a_training_without_a_step_takes_no_disk_for_weights(trained: Path) -> None:
    """In the small run's updates all advantages are 0, so the weights are those of the inputs: the same
    files."""
    artifacts = ArtifactStore(str(trained))
    shared = 0
    for place, artifact_id in ids(trained).items():
        manifest = artifacts.open(artifact_id).manifest
        if place.iteration and manifest.kind == "checkpoint" and not manifest.counters["optimizer_steps"]:
            source = artifacts.open(manifest.inputs["checkpoint"])
            own, before = artifacts.open(artifact_id).path(WEIGHTS), source.path(WEIGHTS)
            assert own.stat().st_ino == before.stat().st_ino
            shared += 1
    assert shared >= 2


def test_an_evaluation_of_a_pruned_checkpoint_makes_it_again(store: Path) -> None:
    go(small(retention={"checkpoints": "1", "optimizer": "1"}), store, 3)
    whole, checkpoint = hashes(store), ids(store)[StageKey(1, "fine_tune", "")]
    before = len(RunStore(str(store)).open("small").recorded())
    notes = Notes()
    with open_run(small(), str(store), notes, notes.stop) as opened:
        outcome = evaluate_on_request(opened, 1, checkpoint, None, 1, count=2)
    assert notes.warnings[0].startswith("evaluate_on_request")
    assert f"model/model.safetensors of artifact {checkpoint} (fine_tune, iteration 1)" in notes.warnings[0]
    assert outcome.metrics.keys() >= {"greedy_success"}
    assert ArtifactStore(str(store)).open(checkpoint).pruned.files == []
    assert hashes(store).items() >= whole.items()
    # The ledger has the tasks and the evaluation; that a file came back is no line of it.
    assert len(RunStore(str(store)).open("small").recorded()) == before + 2
    assert verify_run(ArtifactStore(str(store)), RunStore(str(store)).open("small")).problems == []


def test_offline_training_and_a_branch_make_again_what_they_read(store: Path) -> None:
    go(small(retention=ALL, iterations=3), store, 3)
    whole = hashes(store)
    origin = OfflineOrigin(
        run="small", first_iteration=1, last_iteration=1, checkpoint_id=None, evaluates=False
    )
    notes = go(
        small(name="offline", iterations=1, **DECOUPLED),
        store,
        begin=lambda opened: begin_offline(opened, origin),
    )
    assert any("trajectories.parquet of artifact" in each for each in notes.warnings)
    notes = go(
        small(name="branch", fine_tune={"steps": 5}),
        store,
        begin=lambda opened: begin_branch(opened, BranchOrigin(run="small", iteration=2, stage="fine_tune")),
    )
    assert any("update_policy, iteration 2" in each for each in notes.warnings)
    assert hashes(store) == whole
    for name in ("small", "branch", "offline"):
        assert verify_run(ArtifactStore(str(store)), RunStore(str(store)).open(name)).problems == []


def test_what_today_s_code_makes_otherwise_is_refused_with_a_way_out(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(small(retention={"trajectories": "1"}), store, 3)
    monkeypatch.setattr(
        sources,
        "plugin_fingerprints",
        lambda found: {package: f"{each}edited" for package, each in plugin_fingerprints(found).items()},
    )
    origin = OfflineOrigin(
        run="small", first_iteration=1, last_iteration=1, checkpoint_id=None, evaluates=False
    )
    with pytest.raises(ConfigError, match=r"trajectories\.parquet of .* Put the earlier code back, or train"):
        go(
            small(name="offline", iterations=1, **DECOUPLED),
            store,
            begin=lambda opened: begin_offline(opened, origin),
        )
