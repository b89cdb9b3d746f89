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

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import RunBusy, StoreError
from storage.filesystem import StoreRoot
from storage.runs.lease import hold_lease
from storage.runs.run import RunStore
from storage.serving.aliases import change_alias
from storage.upkeep.collection import collect, committed_bytes, plan_collection
from storage.upkeep.runs import usage_by_run
from tests.histories import write_history
from tests.storage.serving.aliases import alias_change

NOW = timedelta(0)


def commit(store: ArtifactStore, name: str, **inputs: str) -> str:
    recipe = Recipe("evaluate", 1, {"name": name}, inputs, 0)
    with store.create(recipe, run="removed", iteration=1) as staging:
        (staging.path / "file").write_text(name)
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
    assert (plan.runs, plan.reached, plan.young, plan.bytes) == (1, 2, 0, 2)
    assert [manifest.artifact_id for manifest in plan.unreached] == [d, c]
    assert ids(store) == {a, b, c, d}
    assert [manifest.artifact_id for manifest in collect(store_uri, NOW).unreached] == [d, c]
    assert ids(store) == {a, b}
    assert plan_collection(store_uri, NOW).bytes == 0


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
    (root / "trash" / "half").mkdir(parents=True)
    (root / "trash" / "half" / "file").write_text("12")
    (root / "runs" / "run" / ".run.json.0123456789abcdef").write_text("123")
    (root / "memory" / "gone").mkdir(parents=True)
    (root / "artifacts" / "evaluate" / "no-manifest").mkdir()
    (root / "artifacts" / "evaluate" / "no-manifest" / "file").write_text("12345")
    store.discard_damaged(a)
    old = ArtifactStore(store.uri)
    with old.create(Recipe("y", 1, {}, {}, 0), run="run", iteration=1) as living:
        # Beginning an artifact also removes the staging folders of dead processes.
        (living.path / "file").write_text("mine")
        (store.staging_folder / "dead").mkdir()
        found = collect(store.uri, NOW).leftovers
        assert (living.path / "file").read_text() == "mine"
    assert sorted(
        (item.kind, item.files, item.bytes) for item in found if item.kind != "set aside as damaged"
    ) == [
        ("half deleted", 1, 2),
        ("half written", 1, 3),
        ("memory table of no run", 0, 0),
        ("staging of a dead process", 0, 0),
        ("without a manifest", 1, 5),
    ]
    (aside,) = (item for item in found if item.kind == "set aside as damaged")
    assert (aside.files, Path(aside.path).exists()) == (2, False)
    assert not (root / "artifacts" / "evaluate" / "no-manifest").exists()
    assert collect(store.uri, NOW).leftovers == ()


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
    manifest = history.store.find(history.ids["shard"])
    assert manifest is not None
    assert 0 < committed_bytes(manifest) < size(tmp_path, manifest.artifact_id)


def size(folder: Path, artifact_id: str) -> int:
    """Bytes of all files of an artifact, its manifest included."""
    (place,) = (folder / "store" / "artifacts").glob(f"*/{artifact_id}")
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
