"""Forgetting an entry: what it changes, what it leaves, and which policies were trained on the entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError, RunBusy
from storage.lineage.questions import policies_reached
from storage.memory import forgetting
from storage.memory.chain import read_delta_of
from storage.memory.entries import Embedder, MemoryEntry, write_delta
from storage.memory.forgetting import forget, forget_all
from storage.memory.versions import forget_requests, latest_version, memory_versions
from storage.memory.view import ReflectionMemory
from storage.runs.ledger import LedgerEntry
from storage.runs.run import RunStore
from storage.tables.trajectories import Trajectory, write_trajectories
from storage.upkeep.verification import verify_run
from tests.storage.conftest import TinyRun


def asked_of(entries: Iterable[LedgerEntry]) -> dict[int, list[str]]:
    """Iteration -> the ids of its requests."""
    return {
        iteration: [each.artifact_id for each in requests]
        for iteration, requests in forget_requests(entries).items()
    }


def held(tiny_run: TinyRun, embedder: Embedder, version: str) -> list[str]:
    memory = ReflectionMemory(tiny_run.store.uri, "run", tiny_run.store, embedder)
    return memory.at(version).entries()["entry_id"].to_list()


def test_an_entry_leaves_the_next_version_and_stays_in_those_before(
    tiny_run: TinyRun, embedder: Embedder
) -> None:
    done = forget(tiny_run.store, tiny_run.run, "m-001", "it is wrong")
    assert done.memory_version is not None
    assert latest_version(tiny_run.run) == done.memory_version
    assert held(tiny_run, embedder, done.memory_version) == []
    assert held(tiny_run, embedder, tiny_run.memory) == ["m-001"]
    [removal] = read_delta_of(tiny_run.store, done.memory_version).operations()
    assert (removal.operation, removal.entry_id) == ("remove", "m-001")
    assert (removal.reason, removal.detail) == ("forgotten", "it is wrong")
    request = tiny_run.store.open(done.request_id).manifest
    assert request.settings == {"entry_id": "m-001", "reason": "it is wrong"}
    assert [each.artifact_id for each in memory_versions(tiny_run.run)] == [
        tiny_run.memory,
        done.memory_version,
    ]
    assert latest_version(tiny_run.run, iteration=0) == "empty"


def test_the_record_is_verified_with_the_run(tiny_run: TinyRun) -> None:
    before = verify_run(tiny_run.store, tiny_run.run)
    done = forget(tiny_run.store, tiny_run.run, "m-001", "it is wrong")
    after = verify_run(tiny_run.store, tiny_run.run)
    assert (after.problems, after.artifacts) == ([], before.artifacts + 2)
    manifest = Path(tiny_run.store.uri) / "artifacts" / "forget_request" / done.request_id / "manifest.json"
    manifest.write_text(manifest.read_text().replace("it is wrong", "it is right"))
    [problem] = ArtifactStore(tiny_run.store.uri).verify(done.request_id)
    assert "was changed after it was written" in problem


def test_in_the_middle_of_an_iteration_it_waits_for_its_end(tiny_run: TinyRun, embedder: Embedder) -> None:
    tiny_run.run.record(
        2, "rollout_shard", tiny_run.shard, kind="trajectories", key="0000", reused=False, seconds=1.0
    )
    done = forget(tiny_run.store, tiny_run.run, "m-001", "it is wrong")
    assert (done.iteration, done.memory_version) == (2, None)
    assert asked_of(tiny_run.run.recorded()) == {2: [done.request_id]}
    assert held(tiny_run, embedder, latest_version(tiny_run.run)) == ["m-001"]
    with pytest.raises(InputError, match="leaves the memory after iteration 2: it is wrong"):
        forget(tiny_run.store, tiny_run.run, "m-001", "again")


def test_several_entries_leave_by_one_request_and_in_one_version(
    tiny_run: TinyRun, embedder: Embedder, entry: Callable[..., MemoryEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, run = tiny_run.store, tiny_run.run
    more = Recipe("index_memory", 1, {}, {"memory": tiny_run.memory}, 0, kind="memory")
    with store.create(more, run="run", iteration=1) as staging:
        write_delta(staging.path / "memory.parquet", [entry(2), entry(3), entry(4)], embedder)
        staging.commit()
    run.record(1, more.stage, more.artifact_id, kind="memory", reused=False, seconds=0.0)
    with pytest.raises(InputError, match="never held an entry m-9"):
        forget_all(store, run, ["m-002", "m-9"], "wrong")
    before = len(memory_versions(run))
    with monkeypatch.context() as killed:
        killed.setattr(forgetting, "_fulfil", _kill)
        with pytest.raises(KeyboardInterrupt):
            forget_all(store, run, ["m-002", "m-004"], "wrong")
    # What was asked for before the kill is one request; the third entry needs one of its own.
    first, other, third = forget_all(store, run, ["m-002", "m-004", "m-003"], "wrong too")
    assert (first.reason, third.reason) == ("wrong", "wrong too")
    assert (first.request_id, first.memory_version) == (other.request_id, other.memory_version)
    assert len(memory_versions(run)) == before + 2
    request = store.open(first.request_id).manifest
    assert request.settings == {"entry_ids": ["m-002", "m-004"], "reason": "wrong"}
    assert first.memory_version is not None
    assert held(tiny_run, embedder, first.memory_version) == ["m-001", "m-003"]
    assert held(tiny_run, embedder, latest_version(run)) == ["m-001"]


def _kill(*_: object) -> str:
    raise KeyboardInterrupt


def test_more_than_ten_thousand_requests_stay_in_their_order() -> None:
    asked = [
        LedgerEntry(
            iteration=1,
            stage="forget_request",
            kind="request",
            key=f"{number:04d}",
            artifact_id=f"request {number}",
            reused=False,
            seconds=0.0,
            recorded_at=datetime(2026, 1, 1, tzinfo=UTC),
        )
        for number in (10_000, 9_999, 2)
    ]
    assert asked_of(asked) == {1: ["request 2", "request 9999", "request 10000"]}


def test_what_cannot_be_forgotten_is_refused(tiny_run: TinyRun) -> None:
    with pytest.raises(InputError, match="never held an entry m-9"):
        forget(tiny_run.store, tiny_run.run, "m-9", "it is wrong")
    with pytest.raises(InputError, match="give the reason"):
        forget(tiny_run.store, tiny_run.run, "m-001", " ")
    forget(tiny_run.store, tiny_run.run, "m-001", "it is wrong")
    with pytest.raises(InputError, match=r"not in the memory any more: forgotten \(it is wrong\)"):
        forget(tiny_run.store, tiny_run.run, "m-001", "again")


def test_a_run_that_is_worked_on_is_left_alone(tiny_run: TinyRun) -> None:
    other = RunStore(tiny_run.store.uri).open("run")
    with other.lock(), pytest.raises(RunBusy):
        forget(tiny_run.store, tiny_run.run, "m-001", "it is wrong")


def test_the_policies_that_an_entry_has_reached(
    tiny_run: TinyRun, trajectory: Trajectory, entry: Callable[..., MemoryEntry], embedder: Embedder
) -> None:
    """Iteration 1 trains a on the reflection itself; a generates with the entry in a prompt, which trains b
    and, through a dataset, c; d is trained from c. e is trained from the start on other rollouts."""
    store, run = tiny_run.store, tiny_run.run

    def commit(recipe: Recipe, iteration: int, write: Callable[[Path], object]) -> str:
        with store.create(recipe, run="run", iteration=iteration) as staging:
            write(staging.path)
            staging.commit()
        run.record(iteration, recipe.stage, recipe.artifact_id, kind=recipe.kind, reused=False, seconds=1.0)
        return recipe.artifact_id

    def checkpoint(name: str, iteration: int, **inputs: str) -> str:
        def write(folder: Path) -> None:
            (folder / "model").mkdir()
            (folder / "model" / "weights").write_bytes(name.encode())

        return commit(
            Recipe("update_policy", 1, {"name": name}, inputs, 0, kind="checkpoint"), iteration, write
        )

    def shard(name: str, iteration: int, saw: tuple[str, ...], **inputs: str) -> str:
        row = replace(trajectory, trajectory_id=name, role="reflection", memory_entry_ids=saw)
        return commit(
            Recipe("rollout_shard", 1, {"name": name}, inputs, 0, kind="trajectories"),
            iteration,
            lambda folder: write_trajectories(folder / "trajectories.parquet", [row]),
        )

    a = checkpoint("a", 1, checkpoint=tiny_run.checkpoint, rollouts=tiny_run.rollouts)
    seeing = shard("seeing", 2, ("m-001",), checkpoint=a, memory=tiny_run.memory)
    b = checkpoint("b", 2, checkpoint=a, rollouts=seeing)
    distilled = Recipe("build_distillation", 1, {}, {"rollouts": seeing}, 0, kind="sft_dataset")
    dataset = commit(distilled, 2, lambda _: None)
    c = checkpoint("c", 2, checkpoint=b, dataset=dataset)
    d = checkpoint("d", 3, checkpoint=c)
    blind = shard("blind", 2, ("m-002",), checkpoint=tiny_run.checkpoint, memory=tiny_run.memory)
    checkpoint("e", 2, checkpoint=tiny_run.checkpoint, rollouts=blind)
    child = entry(2, source_trajectory_id="seeing", parent_entry_ids=("m-001",))
    commit(
        Recipe("index_memory", 2, {}, {"rollouts": seeing, "memory": tiny_run.memory}, 0, kind="memory"),
        2,
        lambda folder: write_delta(folder / "entries.parquet", [child], embedder),
    )

    source = entry(1, source_trajectory_id="reflection", memory_version=tiny_run.memory)
    reached = policies_reached(store, source)
    assert {policy["artifact_id"] for policy in reached.trained_with_it} == {b, c}
    assert [policy["artifact_id"] for policy in reached.trained_on_its_source] == [a]
    assert [policy["artifact_id"] for policy in reached.descendants] == [d]
    assert list(reached.derived_entries) == ["m-002"]


def test_what_a_kill_left_half_forgotten_is_finished(
    tiny_run: TinyRun, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(forgetting, "_fulfil", killed)
    with pytest.raises(KeyboardInterrupt):
        forget(tiny_run.store, tiny_run.run, "m-001", "it is wrong")
    monkeypatch.undo()
    assert held(tiny_run, embedder, latest_version(tiny_run.run)) == ["m-001"]
    done = forget(tiny_run.store, tiny_run.run, "m-001", "again")
    assert (done.reason, done.iteration) == ("it is wrong", 1)
    assert held(tiny_run, embedder, latest_version(tiny_run.run)) == []
    [request] = [entry for entry in tiny_run.run.stages() if entry.kind == "request"]
    assert request.artifact_id == done.request_id
    with pytest.raises(InputError, match=r"not in the memory any more: forgotten \(it is wrong\)"):
        forget(tiny_run.store, tiny_run.run, "m-001", "again")
