"""Runs that are begun, continued, stopped and damaged: they end like undisturbed runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from erl_pipeline.plan.plan import StageKey
from erl_pipeline.runs import planning
from erl_pipeline.runs.driver import open_run
from erl_pipeline.stages.training.distillation import BUILD_DISTILLATION
from storage.artifacts.layout import StagingFolder
from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import RunBusy
from storage.runs.run import RunStore
from storage.upkeep.verification import verify_run
from tests.erl_pipeline.runs.planned_runs import ITERATION
from tests.erl_pipeline.runs.small_runs import Notes, damage, go, hashes, ids, small


def of(iteration: int, *names: str) -> list[str]:
    return [f"{name} of iteration {iteration}" for name in names]


@pytest.fixture(scope="module")
def three(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """File hashes of the run after a third iteration."""
    store = Path(shutil.copytree(trained, tmp_path_factory.mktemp("three") / "store"))
    go(small(), store, 3)
    return hashes(store)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Ids of the artifacts whose manifest or files were read, as in a run that is too long for its report."""
    monkeypatch.setattr("erl_pipeline.runs.planning.REPORTED_ITERATIONS", 0)
    seen: set[str] = set()

    def watched(read: Callable[..., object]) -> Callable[..., object]:
        def reading(store: ArtifactStore, artifact: str | Manifest, *rest: object) -> object:
            seen.add(artifact if isinstance(artifact, str) else artifact.artifact_id)
            return read(store, artifact, *rest)

        return reading

    monkeypatch.setattr(ArtifactStore, "find", watched(ArtifactStore.find))
    monkeypatch.setattr(ArtifactStore, "open", watched(ArtifactStore.open))
    return seen


def test_the_ledger_has_every_artifact_of_the_plan_once(trained: Path) -> None:
    run = RunStore(str(trained)).open("small")
    entries = run.recorded()
    assert [entry.artifact_id for entry in entries] == list(ids(trained).values())
    plan = planning.plan_as_made(str(trained), run)
    assert {node.place: node.artifact_id for node in plan.nodes} == ids(trained)
    assert all(node.recipe.artifact_id == node.artifact_id for node in plan.nodes)
    assert verify_run(ArtifactStore(str(trained)), run).problems == []


def test_what_a_process_that_was_killed_after_its_last_commit_left_is_removed(store: Path) -> None:
    """It had not yet removed the folder in which it wrote the artifact."""
    before = hashes(store)
    left = StagingFolder(store / "staging")
    left.name_place("evaluate", ids(store)[StageKey(2, "evaluate", "")])
    dead = shutil.copytree(left.path, store / "staging" / "0123456789abcdef")
    left.release()
    assert go(small(), store).made == []
    assert (dead.exists(), hashes(store)) == (False, before)


def test_a_finished_run_has_nothing_to_do(store: Path) -> None:
    before = (store / "runs/small/ledger.jsonl").read_bytes()
    notes = go(small(), store)
    assert (notes.made, notes.warnings) == ([], [])
    assert notes.reused == of(2, *ITERATION, "evaluate")
    assert (store / "runs/small/ledger.jsonl").read_bytes() == before


def test_one_more_iteration_looks_only_at_the_newest_and_what_that_rests_on(
    store: Path, looked_at: set[str], three: dict[str, dict[str, str]]
) -> None:
    notes = go(small(), store, 3)
    assert notes.made == of(3, *ITERATION, "evaluate")
    assert notes.reused == of(2, *ITERATION, "evaluate")
    seen = set(looked_at)
    places = {artifact_id: place for place, artifact_id in ids(store).items()}
    older = {(place.iteration, place.stage) for one in seen if (place := places[one]).iteration < 2}
    # All versions of a memory together show that it is empty.
    assert older == {(0, "prepare_tasks"), (1, "index_memory")}
    assert hashes(store) == three


@pytest.mark.parametrize(
    "stop_after",
    ["rollout_shard 0000 of iteration 3", "index_memory of iteration 3", "fine_tune of iteration 3"],
)
def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(
    store: Path, three: dict[str, dict[str, str]], stop_after: str
) -> None:
    go(small(), store, 3, stop_after=stop_after)
    notes = go(small(), store, 3)
    assert notes.warnings == []
    assert stop_after not in notes.made
    assert hashes(store) == three


def test_old_damage_does_not_stop_a_run_and_a_check_makes_it_good(store: Path) -> None:
    before = ids(store)
    victim = damage(store, 1, "build_distillation")
    assert go(small(), store, 3).warnings == []
    run = RunStore(str(store)).open("small")
    (problem,) = verify_run(ArtifactStore(str(store)), run).problems
    assert str(victim) in problem
    notes = go(small(), store, 3, check=True)
    (warning,) = notes.warnings
    assert str(victim) in warning
    assert notes.made == of(1, "build_distillation")
    assert verify_run(ArtifactStore(str(store)), run).problems == []
    assert before.items() <= ids(store).items()


def test_damage_in_the_newest_iteration_is_made_good_at_once(store: Path, trained: Path) -> None:
    damage(store, 2, "build_distillation")
    assert go(small(), store).made == of(2, "build_distillation")
    assert hashes(store) == hashes(trained)


def test_damage_that_needs_something_older_that_is_damaged_is_made_good(store: Path, trained: Path) -> None:
    damage(store, 2, "rollout_shard", "0001")
    damage(store, 1, "fine_tune")
    shutil.rmtree(store / "artifacts/update_policy" / ids(store)[StageKey(1, "update_policy", "")])
    notes = go(small(), store)
    # To compute the shard again, the policy of iteration 1 is read; to compute that policy, an older one.
    assert notes.made == [
        *of(1, "update_policy", "fine_tune"),
        *of(2, "rollout_shard 0001"),
    ]
    assert len(notes.warnings) == 3
    assert hashes(store) == hashes(trained)


def test_a_damaged_shard_of_a_begun_iteration_is_made_again(
    store: Path, three: dict[str, dict[str, str]]
) -> None:
    """No stage reads a shard before the update reads it through the list of shards."""
    go(small(), store, 3, stop_after="generate_rollouts of iteration 3")
    damage(store, 3, "rollout_shard", "0000")
    notes = go(small(), store, 3)
    assert notes.made[0] == "rollout_shard 0000 of iteration 3"
    assert hashes(store) == three


def test_a_stage_of_another_version_makes_all_that_follows_from_it_anew(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = BUILD_DISTILLATION.version
    object.__setattr__(BUILD_DISTILLATION, "version", 99)
    try:
        notes = go(small(), store, stop_after="rollout_shard 0001 of iteration 2")
        assert notes.made[:2] == of(1, "build_distillation", "fine_tune")
        notes = go(small(), store)
        assert notes.warnings == []
        go(small(), tmp_path / "whole")
        assert hashes(store) == hashes(tmp_path / "whole")
    finally:
        object.__setattr__(BUILD_DISTILLATION, "version", before)


def test_a_run_is_busy_while_another_process_works_on_it(store: Path) -> None:
    notes = Notes()
    with (
        open_run(small(), str(store), notes, notes.stop),
        pytest.raises(RunBusy, match=str(os.getpid())),
        open_run(small(), str(store), notes, notes.stop),
    ):
        pass
