from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError, RunBusy, StoreError
from storage.filesystem import StoreRoot, open_root
from storage.runs.lease import hold_lease
from storage.runs.run import RunStore
from storage.serving.aliases import change_alias
from storage.upkeep.collection import collect, plan_collection
from storage.upkeep.runs import usage_by_run
from tests.histories import write_history
from tests.storage.serving.aliases import alias_change

NOW = timedelta(0)


def commit(store: ArtifactStore, name: str, content: str | None = "content", **inputs: str) -> str:
    recipe = Recipe("evaluate", 1, {"name": name}, inputs, 0)
    with store.create(recipe, run="removed", iteration=1) as staging:
        if content is not None:
            (staging.path / "file").write_text(content)
        return staging.commit().manifest.artifact_id


def chain(store: ArtifactStore) -> tuple[str, str, str, str]:
    """A run that reaches `b`, made from `a`; and `d`, made from `c` and `a`, which nothing reaches."""
    a = commit(store, "a")
    b = commit(store, "b", first=a)
    c = commit(store, "c")
    d = commit(store, "d", first=a, second=c)
    RunStore(store.uri).create("run", {}).record(
        1, "evaluate", b, kind="evaluation", reused=False, seconds=0.0
    )
    return a, b, c, d


def ids(store: ArtifactStore) -> set[str]:
    return {manifest.artifact_id for manifest in ArtifactStore(store.uri).list()}


def test_only_what_no_run_reaches_goes_and_consumers_go_first(store_uri: str) -> None:
    store = ArtifactStore(store_uri)
    a, b, c, d = chain(store)
    plan = plan_collection(store_uri, NOW)
    assert (plan.runs, plan.reached, plan.young) == (1, 2, 0)
    assert plan.bytes == sum(plan.unreached_bytes.values()) > 2  # their manifests, too
    assert plan.unreached_bytes.keys() == {c, d}
    assert [manifest.artifact_id for manifest in plan.unreached] == [d, c]
    assert ids(store) == {a, b, c, d}
    assert [manifest.artifact_id for manifest in collect(store_uri, NOW).unreached] == [d, c]
    assert ids(store) == {a, b}
    assert plan_collection(store_uri, NOW).bytes == 0


def test_an_artifact_without_files_goes_too(store_uri: str) -> None:
    store = ArtifactStore(store_uri)
    chain(store)
    empty = commit(store, "empty", content=None)
    assert empty in {manifest.artifact_id for manifest in collect(store_uri, NOW).unreached}
    assert len(ids(store)) == 2


def test_uploads_without_a_manifest_go_from_what_stays_and_count_once_in_what_goes(
    object_store_uri: str,
) -> None:
    store, root = ArtifactStore(object_store_uri), open_root(object_store_uri)
    _, b, c, _ = chain(store)
    before = plan_collection(store.uri, NOW)
    for artifact_id, content in ((b, b"12"), (c, b"345")):
        root.fs.pipe_file(root.join("artifacts", "evaluate", artifact_id, "0" * 16, "file"), content)
    assert plan_collection(store.uri, timedelta(hours=1)).leftovers == ()
    plan = collect(store.uri, NOW)
    assert [(item.kind, item.bytes) for item in plan.leftovers] == [("without a manifest", 2)]
    assert plan.bytes == before.bytes + 5
    assert ArtifactStore(store.uri).verify(b) == []
    assert plan_collection(store.uri, NOW).bytes == 0


def test_what_an_alias_means_or_meant_before_stays(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    a, b, c, d = chain(store)
    older = commit(store, "older")
    for checkpoint, before in ((older, None), (c, older), (d, c)):
        change_alias(store.uri, "served", alias_change(checkpoint, previous=before))
    assert [manifest.artifact_id for manifest in collect(store.uri, NOW).unreached] == [older]
    assert ids(store) == {a, b, c, d}


def test_what_is_young_stays_since_its_ledger_line_may_be_about_to_be_written(store: ArtifactStore) -> None:
    *_, c, d = chain(store)
    plan = collect(store.uri, timedelta(hours=1))
    assert (plan.unreached, plan.young) == ((), 2)
    assert {c, d} < ids(store)


def test_all_lines_of_a_ledger_count_not_only_the_latest(store: ArtifactStore) -> None:
    a, b, c, d = chain(store)
    run = RunStore(store.uri).open("run")
    run.record(1, "evaluate", d, kind="evaluation", reused=False, seconds=0.0)
    assert [entry.artifact_id for entry in run.stages()] == [d]
    assert collect(store.uri, NOW).unreached == ()
    assert ids(store) == {a, b, c, d}


def test_a_run_whose_folder_was_removed_reaches_nothing(store: ArtifactStore) -> None:
    chain(store)
    folder = Path(store.uri) / "runs" / "run"
    (folder / "run.json").unlink()
    with pytest.raises(StoreError, match=r"has a ledger and no run\.json"):
        collect(store.uri, NOW)
    assert len(ids(store)) == 4
    (folder / "ledger.jsonl").unlink()
    (folder / "ledger.head.json").unlink()
    collect(store.uri, NOW)
    assert ids(store) == set()


def test_nothing_goes_while_a_reached_manifest_cannot_be_read(store: ArtifactStore) -> None:
    _, b, *_ = chain(store)
    manifest = Path(store.uri) / "artifacts" / "evaluate" / b / "manifest.json"
    whole = manifest.read_text()
    manifest.write_text(whole.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(StoreError, match="what it was made from is not known"):
        collect(store.uri, NOW)
    manifest.write_text(whole)
    assert len(ids(store)) == 4


def test_nothing_goes_while_a_run_is_worked_on(store_uri: str) -> None:
    chain(ArtifactStore(store_uri))
    run = RunStore(store_uri).open("run")
    with run.lock(), pytest.raises(RunBusy, match=f"and process {os.getpid()} on .* is at work"):
        collect(store_uri, NOW)
    assert len(collect(store_uri, NOW).unreached) == 2
    with run.lock():
        pass


def test_a_run_that_another_machine_begins_just_before_the_lease_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"memory://{tmp_path.name}"
    other = ExitStack()

    def late(root: StoreRoot, folder: str, *rest: Any) -> Any:
        if folder == root.join("collection", "lease"):
            with monkeypatch.context() as patch:
                patch.setattr("tempfile.tempdir", str(tmp_path))  # other locks of files: another machine
                other.enter_context(RunStore(uri).create("new", {}).lock())
        return hold_lease(root, folder, *rest)

    monkeypatch.setattr("storage.runs.locks.hold_lease", late)
    with other, pytest.raises(RunBusy, match="works on run new"):
        collect(uri, timedelta())


def test_nothing_more_goes_once_another_machine_has_taken_over(
    object_store_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, root = ArtifactStore(object_store_uri), open_root(object_store_uri)
    *_, c, d = chain(store)
    remove = ArtifactStore.remove

    def remove_slowly(own: ArtifactStore, manifest: Manifest) -> None:
        remove(own, manifest)
        root.fs.pipe_file(root.join("collection", "lease", "00000002.json"), b"of another machine")

    monkeypatch.setattr(ArtifactStore, "remove", remove_slowly)
    with pytest.raises(RunBusy, match="another machine has taken over"):
        collect(store.uri, NOW)
    assert d not in ids(store)
    assert c in ids(store)


def test_leftovers_of_dead_processes_go_and_those_of_living_ones_stay(store: ArtifactStore) -> None:
    a, *_ = chain(store)
    program = (
        "import os, signal, sys\n"
        "from storage.artifacts.store import ArtifactStore\n"
        "from storage.artifacts.recipe import Recipe\n"
        "staging = ArtifactStore(sys.argv[1]).create(Recipe('x', 1, {}, {}, 3), run='run', iteration=1)\n"
        "(staging.path / 'file').write_text('half')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, store.uri], check=False)
    assert done.returncode == -signal.SIGKILL
    root = Path(store.uri)
    half, lost = root / "trash" / "0123456789abcdef-01234567", root / "artifacts" / "evaluate" / ("0" * 32)
    half.mkdir(parents=True)
    (half / "file").write_text("12")
    (root / "runs" / "run" / ".run.json.0123456789abcdef").write_text("123")
    (root / "memory" / "gone").mkdir(parents=True)
    (root / "memory" / ".run.0123456789abcdef" / "reflections.lance").mkdir(parents=True)
    lost.mkdir()
    (lost / "file").write_text("12345")
    store.discard_damaged(a)
    old = ArtifactStore(store.uri)
    with old.create(Recipe("y", 1, {}, {}, 0), run="run", iteration=1) as living:
        # Beginning an artifact also removes the staging folders of dead processes.
        (living.path / "file").write_text("mine")
        (store.staging_folder / "0123456789abcdef").mkdir()
        assert collect(store.uri, timedelta(hours=1)).leftovers == ()
        found = collect(store.uri, NOW).leftovers
        assert (living.path / "file").read_text() == "mine"
    assert sorted(
        (item.kind, item.files, item.bytes) for item in found if item.kind != "set aside as damaged"
    ) == [
        ("half deleted", 0, 0),
        ("half deleted", 1, 2),
        ("half written", 1, 3),
        ("memory table of no run", 0, 0),
        ("staging of a dead process", 0, 0),
        ("without a manifest", 1, 5),
    ]
    (aside,) = (item for item in found if item.kind == "set aside as damaged")
    assert (aside.files, Path(aside.path).exists()) == (2, False)
    assert not lost.exists()
    assert collect(store.uri, NOW).leftovers == ()


def test_a_folder_that_is_no_store_loses_nothing_and_gets_nothing(tmp_path: Path) -> None:
    for name in ("staging/0123456789abcdef", "trash/x", "artifacts/build/release", "memory/notes"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "mine.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    for act in (plan_collection, collect):
        with pytest.raises(InputError, match="neither a run nor an artifact"):
            act(str(tmp_path), NOW)
    assert sorted(tmp_path.rglob("*")) == before


def test_files_that_a_user_has_beside_those_of_a_store_stay(store: ArtifactStore) -> None:
    chain(store)
    names = ("staging/s", "trash/x", "artifacts/build/release", "memory/notes", "damaged/old/part")
    own = [Path(store.uri) / name / "mine.txt" for name in names]
    own += [Path(store.uri) / "staging" / "important.txt", Path(store.uri) / "trash" / "important.txt"]
    for path in own:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    table = Path(store.uri) / "memory" / "gone" / "reflections.lance"
    table.mkdir(parents=True)
    assert {item.path for item in collect(store.uri, NOW).leftovers} == {str(table.parent)}
    commit(store, "another, whose beginning clears the staging folder")
    assert [path for path in own if not path.is_file()] == []


COLLECTOR = """
import sys, threading, os, signal
from datetime import timedelta
from pathlib import Path
from storage.upkeep.collection import collect
artifacts = Path(sys.argv[1]) / "artifacts" / "evaluate"
count = len(list(artifacts.iterdir()))
def watch():
    while len(list(artifacts.iterdir())) == count:
        pass
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=watch, daemon=True).start()
collect(sys.argv[1], timedelta(0))
"""


def test_a_collection_killed_half_way_leaves_whole_artifacts_with_their_inputs(store: ArtifactStore) -> None:
    chain(store)
    last = commit(store, "e")
    for number in range(40):
        last = commit(store, f"link {number}", before=last)
    done = subprocess.run([sys.executable, "-c", COLLECTOR, store.uri], check=False)
    assert done.returncode == -signal.SIGKILL
    left = ids(store)
    assert 2 < len(left) < 45
    for artifact_id in left:
        assert ArtifactStore(store.uri).verify(artifact_id) == []
    collect(store.uri, NOW)
    assert len(ids(store)) == 2
    assert not (Path(store.uri) / "trash").exists() or list((Path(store.uri) / "trash").iterdir()) == []
    assert json.loads((Path(store.uri) / "runs" / "run" / "run.json").read_text())["name"] == "run"


def test_what_two_runs_have_is_shared_and_the_rest_their_own(tmp_path: Path) -> None:
    history = write_history(str(tmp_path / "store"))
    usage = usage_by_run(history.store.uri)
    assert list(usage) == ["base", "branch"]
    shared = {"bootstrap", "shard", "rollouts"}
    assert usage["branch"].artifacts == len(shared) + 1
    assert usage["base"].artifacts == len(history.ids) - 1
    for run, only in (("branch", {"update-branch"}), ("base", set(history.ids) - shared - {"update-branch"})):
        assert usage[run].own == sum(size(tmp_path, history.ids[name]) for name in only)
        assert usage[run].shared == sum(size(tmp_path, history.ids[name]) for name in shared)


def test_bytes_that_artifacts_share_count_once_and_are_freed_with_the_last_of_them(
    store: ArtifactStore,
) -> None:
    _, b, c, d = chain(store)
    places = [Path(store.uri) / "artifacts" / "evaluate" / artifact_id for artifact_id in (b, c, d)]
    whole = usage_by_run(store.uri)["run"]
    (places[0] / "weights").write_bytes(bytes(5000))
    assert usage_by_run(store.uri)["run"].own == whole.own + 5000
    alone = plan_collection(store.uri, NOW)
    for place in places[1:]:
        os.link(places[0] / "weights", place / "weights")
    assert plan_collection(store.uri, NOW).bytes == alone.bytes  # the run has the bytes, too
    usage = usage_by_run(store.uri)["run"]
    assert (usage.own, usage.shared) == (whole.own, 5000)
    (places[0] / "weights").unlink()
    plan = plan_collection(store.uri, NOW)
    assert plan.bytes == alone.bytes + 5000
    assert plan.unreached_bytes[c] + plan.unreached_bytes[d] == plan.bytes


def size(folder: Path, artifact_id: str) -> int:
    """Bytes of all files of an artifact, its manifest included."""
    (place,) = (folder / "store" / "artifacts").glob(f"*/{artifact_id}")
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
