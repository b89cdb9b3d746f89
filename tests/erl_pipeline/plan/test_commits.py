"""Stages that begin while the artifacts that they read are still being committed."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.plan.commits import Commits
from erl_pipeline.plan.execution import _Walk
from erl_pipeline.plan.plan import PlannedStage
from erl_pipeline.plan.runner import WorkerDied
from erl_pipeline.plan.stage import StageCall, StageResult
from storage.artifacts.artifact import Artifact
from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.artifacts.uncommitted import Draft, Uncommitted
from storage.errors import Interrupted, StateNotKept, StoreError, TrainingDiverged
from tests.erl_pipeline.plan.hand_made import Bench, Word, planned

WAIT = 20.0


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def before_each_commit(monkeypatch: pytest.MonkeyPatch, call: Callable[[str], object]) -> None:
    """Call a function, with the name of the stage, before an artifact is committed."""
    commit = Uncommitted.commit

    def commit_later(begun: Uncommitted, written: Draft) -> Artifact:
        call(written.manifest.stage)
        return commit(begun, written)

    monkeypatch.setattr(Uncommitted, "commit", commit_later)


@pytest.mark.parametrize("workers", [None, 2])
def test_a_stage_reads_what_is_written_and_not_yet_committed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, workers: int | None
) -> None:
    began = threading.Event()
    before_each_commit(monkeypatch, lambda stage: stage == "first" and began.wait(WAIT))
    found: list[object] = []

    def read(call: StageCall[Word]) -> None:
        found.append(ArtifactStore(bench.uri).find(first.artifact_id))
        found.append(call.inputs["input-0"].path("file").read_text())
        began.set()

    first = planned("first", word="word")
    second = planned("second", [first], hook=read)
    bench.execute(first, second, workers=workers, background_bytes=0)
    assert found == [None, "word"]
    assert [artifact_id for _, artifact_id, _ in bench.ledger] == [first.artifact_id, second.artifact_id]
    assert bench.committed() == {first.artifact_id, second.artifact_id}


def test_nothing_is_committed_before_its_inputs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    ended = threading.Event()

    def note(stage: str) -> None:
        if stage == "one":
            assert ended.wait(WAIT), "the others are written while the first commit waits"
        order.append(stage)

    before_each_commit(monkeypatch, note)
    one = planned("one")
    two = planned("two", [one])
    three = planned("three", [two], hook=lambda _call: ended.set())
    bench.execute(one, two, three, background_bytes=0)
    assert order == ["one", "two", "three"]


def test_a_full_disk_beside_the_next_stage_ends_the_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = threading.Event()

    def fail(stage: str) -> None:
        if stage == "second":
            assert began.wait(WAIT)
            raise StoreError(f"cannot write: {os.strerror(errno.ENOSPC)}")

    before_each_commit(monkeypatch, fail)
    first = planned("first")
    second = planned("second", [first])
    third = planned("third", [second], hook=lambda _call: began.set())
    with pytest.raises(StoreError, match="No space left on device"):
        bench.execute(first, second, third, background_bytes=0)
    assert bench.recorded() == {first.place: first.artifact_id}
    assert bench.committed() == {first.artifact_id}
    folders = Path(bench.uri) / "artifacts"
    assert not list((folders / "second").iterdir()), "what cannot be committed is removed"
    assert not list((Path(bench.uri) / "staging").iterdir())
    monkeypatch.undo()
    assert bench.execute(first, second, third, background_bytes=0).made == ["second", "third"]


NO_ROOM = StoreError("cannot write: no room")
NOT_COMMITTED = "what was written could not be committed: cannot write: no room"


@pytest.mark.parametrize("failures", [1, 9])
def test_a_stop_ends_the_wait_of_a_commit_which_is_tried_once_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    tries = list[str]()

    def be_away(stage: str) -> None:
        tries.append(stage)
        threading.Timer(0.5, bench.stop.set).start()
        if len(tries) <= failures:
            raise StoreError("no answer")

    before_each_commit(monkeypatch, be_away)
    patient = planned("first", retry_seconds=(600.0, 600.0))
    with pytest.raises(StoreError, match="no answer") if failures > 1 else nullcontext():
        bench.execute(patient, background_bytes=0)
    assert len(tries) == 2
    assert len(bench.ledger) == (failures == 1)


def test_files_that_the_disk_refused_once_are_not_flushed_again_but_written_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second flush of the same files would succeed, although their bytes are lost."""
    fsync, tries = os.fsync, list[str]()

    def refused(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/file"):
            monkeypatch.setattr(os, "fsync", fsync)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refused)
    before_each_commit(monkeypatch, tries.append)
    patient = planned("first", retry_seconds=(0.0, 0.0))
    with pytest.raises(StoreError, match=r"cannot flush to disk .*/file: Input/output error; the disk fails"):
        bench.execute(patient, background_bytes=0)
    assert tries == ["first"]
    assert bench.committed() == set()
    assert bench.execute(patient, background_bytes=0).made == ["first"]


@pytest.mark.parametrize(
    ("failure", "told", "warned"),
    [
        (TrainingDiverged("the loss is NaN"), "the loss is NaN", NOT_COMMITTED),
        (WorkerDied("worker 7 was killed"), "worker 7 was killed", NOT_COMMITTED),
        (StoreError("an input is not whole"), "no room", "second failed too: an input is not whole"),
        (Interrupted(), None, NOT_COMMITTED),
    ],
)
def test_the_failure_of_a_stage_is_told_before_that_of_a_commit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, failure: Exception, told: str | None, warned: str
) -> None:
    """A worker that is killed, for example, neither computes nor writes on."""
    commits: list[Future[Manifest]] = []
    add, second_began = Commits.add, threading.Event()

    def added(*given: Any) -> Future[Manifest]:
        commits.append(add(*given))
        return commits[-1]

    def refuse(_stage: str) -> None:
        assert second_began.wait(WAIT)  # Otherwise it might never begin.
        raise NO_ROOM

    def fail(_call: StageCall[Word]) -> None:
        second_began.set()
        wait(commits, WAIT)
        raise failure

    monkeypatch.setattr(Commits, "add", added)
    before_each_commit(monkeypatch, refuse)
    first = planned("first")
    with pytest.raises(type(failure), match=told):
        bench.execute(first, planned("second", [first], hook=fail), background_bytes=0)
    assert bench.notes.warnings == [warned]
    assert bench.committed() == set()


def test_an_artifact_that_has_no_place_keeps_no_other_from_being_recorded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three stages are at work when the first one fails."""
    ending = threading.Event()
    place, record = Uncommitted.place, _Walk._record_the_rest

    def placed(begun: Uncommitted, manifest: Manifest) -> bool:
        if manifest.stage == "second":
            raise NO_ROOM
        return place(begun, manifest)

    def record_the_rest(walk: _Walk) -> None:
        ending.set()
        record(walk)

    def fail(_call: StageCall[Word]) -> None:
        raise TrainingDiverged("the loss is NaN")

    def stay(_call: StageCall[Word]) -> None:
        assert ending.wait(WAIT)

    monkeypatch.setattr(Uncommitted, "place", placed)
    monkeypatch.setattr(_Walk, "_record_the_rest", record_the_rest)
    third = planned("third", hook=stay)
    with pytest.raises(TrainingDiverged):
        bench.execute(
            planned("first", hook=fail), planned("second", hook=stay), third, workers=3, background_bytes=0
        )
    assert bench.notes.warnings == ["second failed too: cannot write: no room"]
    assert bench.recorded() == {third.place: third.artifact_id}
    assert not list((Path(bench.uri) / "staging").iterdir())


def test_at_most_two_checkpoints_are_written_and_not_committed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    third_waits = threading.Event()
    before_each_commit(monkeypatch, lambda stage: stage == "one" and third_waits.wait(0.5))
    committed: list[bool] = []

    def look(_call: StageCall[Word]) -> None:
        committed.append(ArtifactStore(bench.uri).find(one.artifact_id) is not None)

    one = planned("one", kind="checkpoint")
    two = planned("two", [one], kind="checkpoint", hook=look)
    three = planned("three", [two], kind="checkpoint", hook=look)
    bench.execute(one, two, three, background_bytes=0)
    assert committed == [False, True]


def test_updates_are_repeated_only_from_what_is_committed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = threading.Event()
    before_each_commit(monkeypatch, lambda stage: stage == "first" and tried.wait(WAIT))
    committed: list[bool] = []

    def train(_call: StageCall[Word]) -> None:
        committed.append(ArtifactStore(bench.uri).find(first.artifact_id) is not None)
        tried.set()
        if len(committed) == 1:
            raise StateNotKept("no state", first.artifact_id, "no state")

    first = planned("first")
    bench.execute(first, planned("second", [first], hook=train), background_bytes=0)
    assert committed == [False, True]


def test_a_small_artifact_is_committed_before_the_next_stage_begins(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`small` has 7 bytes; the others, with the ids of their inputs, have more than 9."""
    began = threading.Event()
    before_each_commit(monkeypatch, lambda stage: stage == "large" and began.wait(WAIT))
    committed: list[bool] = []

    def look(call: StageCall[Word]) -> None:
        committed.append(
            ArtifactStore(bench.uri).find(call.inputs["input-0"].manifest.artifact_id) is not None
        )
        if len(committed) == 3:
            began.set()

    small = planned("small", word="7 bytes")
    large = planned("large", [small], hook=look)
    after = planned("after", [large], hook=look)
    last = planned("last", [after], hook=look)
    bench.execute(small, large, after, last, background_bytes=9)
    assert committed == [True, False, False]


def _killed_in_the_second_stage(folder: Path) -> None:
    def kill(_call: StageCall[Word]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        before_each_commit(patch, lambda _stage: threading.Event().wait(WAIT))
        first = planned("first")
        Bench(folder).execute(first, planned("second", [first], hook=kill), background_bytes=0)


def test_a_kill_loses_only_what_is_not_committed(bench: Bench) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=_killed_in_the_second_stage, args=(bench.folder,)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert bench.committed() == set()
    first = planned("first")
    second = planned("second", [first])
    assert bench.execute(first, second, background_bytes=0).made == ["first", "second"]
    assert bench.committed() == {first.artifact_id, second.artifact_id}
    assert not (Path(bench.uri) / "damaged").exists()


def writing_later(
    node: PlannedStage, parts: Callable[[], Iterator[memoryview]], seen: list[bool] | None = None
) -> PlannedStage:
    """The stage, but its file `late` of 7 bytes is written in a thread, if it may be; `seen` tells that."""

    def compute(call: StageCall[Word]) -> StageResult:
        result = node.stage.compute(call)
        if seen is not None:
            seen.append(call.may_write_later)
        if not call.may_write_later:
            (call.folder / "late").write_bytes(b"".join(parts()))
            return result
        call.resources.late_files.begin({call.folder / "late": parts()})
        return replace(result, late={"late": 7})

    return replace(node, stage=replace(node.stage, compute=compute))


@pytest.mark.parametrize("workers", [None, 2])
def test_a_stage_begins_while_a_file_of_its_input_is_written(bench: Bench, workers: int | None) -> None:
    began = threading.Event()

    def parts() -> Iterator[memoryview]:
        yield memoryview(b"one ")
        assert began.wait(WAIT)
        yield memoryview(b"two")

    def read(call: StageCall[Word]) -> None:
        found.append(call.inputs["input-0"].path("file").read_text())
        found.append(str(call.inputs["input-0"].manifest.files[1].bytes))
        began.set()

    found: list[str] = []
    first = writing_later(planned("first", word="word"), parts)
    second = planned("second", [first], hook=read)
    bench.execute(first, second, workers=workers, background_bytes=0)
    assert found == ["word", "7"]
    assert bench.committed() == {first.artifact_id, second.artifact_id}
    committed = ArtifactStore(bench.uri).open(first.artifact_id)
    assert committed.path("late").read_bytes() == b"one two"
    assert {entry.path: entry.bytes for entry in committed.manifest.files} == {"file": 4, "late": 7}


def test_files_are_written_at_once_where_the_stage_commits(bench: Bench) -> None:
    seen: list[bool] = []
    first = writing_later(planned("first"), lambda: iter([memoryview(b"one two")]), seen)
    bench.execute(first)
    assert seen == [False]
    assert ArtifactStore(bench.uri).open(first.artifact_id).path("late").read_bytes() == b"one two"


def test_a_full_disk_while_a_file_is_written_ends_the_run(bench: Bench) -> None:
    began = threading.Event()

    def parts() -> Iterator[memoryview]:
        yield memoryview(b"one ")
        assert began.wait(WAIT)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    first = planned("first")
    second = writing_later(planned("second", [first]), parts)
    third = planned("third", [second], hook=lambda _call: began.set())
    with pytest.raises(StoreError, match="No space left on device"):
        bench.execute(first, second, third, background_bytes=0)
    assert bench.committed() == {first.artifact_id}
    folders = Path(bench.uri) / "artifacts"
    assert not [path for name in ("second", "third") for path in folders.glob(f"{name}/*")]
    assert not list((Path(bench.uri) / "staging").iterdir())
    whole = writing_later(planned("second", [first]), lambda: iter([memoryview(b"one two")]))
    assert bench.execute(first, whole, third, background_bytes=0).made == ["second", "third"]


def _killed_while_writing(folder: Path) -> None:
    began = threading.Event()

    def parts() -> Iterator[memoryview]:
        yield memoryview(b"one ")
        assert began.wait(WAIT)
        os.kill(os.getpid(), signal.SIGKILL)

    first = writing_later(planned("first"), parts)

    def stay(_call: StageCall[Word]) -> None:
        began.set()
        threading.Event().wait(WAIT)

    Bench(folder).execute(first, planned("second", [first], hook=stay), background_bytes=0)


def test_a_kill_while_a_file_is_written_loses_only_what_is_not_committed(bench: Bench) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_killed_while_writing, args=(bench.folder,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert bench.committed() == set()
    (left,) = (Path(bench.uri) / "artifacts").glob("first/*/late")
    assert left.read_bytes() == b"one "
    first = writing_later(planned("first"), lambda: iter([memoryview(b"one two")]))
    second = planned("second", [first])
    assert bench.execute(first, second, background_bytes=0).made == ["first", "second"]
    assert bench.committed() == {first.artifact_id, second.artifact_id}
    assert not (Path(bench.uri) / "damaged").exists()
