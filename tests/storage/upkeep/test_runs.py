"""An older ledger, put back with its head, is found; what a kill leaves is not taken for one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from storage.artifacts.recipe import ArtifactKind, Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError, RunBusy
from storage.filesystem import open_root
from storage.runs.documents import IMPORTED, BranchOrigin, OfflineOrigin, write_origin
from storage.runs.ledger import Ledger, LedgerEntry
from storage.runs.run import Run, RunStore
from storage.serving.aliases import change_alias
from storage.upkeep.runs import Unrecorded, find_unrecorded, remove_run
from storage.upkeep.verification import verify_run
from tests.command_line.invoke import FinishedRun, invoke
from tests.histories import write_history
from tests.storage.serving.aliases import alias_change


@pytest.fixture
def store(finished: FinishedRun, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished.store, tmp_path / "store"))


def put_back(store: Path, entries: Sequence[LedgerEntry], run: str = "small") -> None:
    """Make these lines the whole ledger, with its head."""
    Ledger(open_root(str(store)), str(store / "runs" / run / "ledger.jsonl"), run).rewrite(entries)


def found(store: Path, name: str = "small") -> Unrecorded | None:
    run = RunStore(str(store)).open(name)
    return find_unrecorded(ArtifactStore(str(store)), run, run.recorded())


def recorded(store: Path) -> list[LedgerEntry]:
    return RunStore(str(store)).open("small").recorded()


def test_an_older_ledger_is_found_by_readers_and_check_makes_it_again(
    finished: FinishedRun, store: Path
) -> None:
    entries = recorded(store)
    through_first = [entry for entry in entries if (entry.iteration or 0) <= 1]
    assert 0 < len(through_first) < len(entries)
    assert found(store) is None
    put_back(store, through_first)
    command = "`erl-pipeline train CONFIG --name small --check --iterations 2` makes the ledger again."
    verified = invoke("lineage", "verify", "small", "--store", store)
    assert (verified.status, verified.output.count(command)) == (1, 1)
    shown = invoke("status", "small", "--store", store)
    assert (shown.status, command in " ".join(shown.output.split())) == (0, True)
    report = invoke("report", "small", "--store", store)
    assert (report.status, report.errors.count(command)) == (0, 1)
    listed = invoke("status", "small", "--store", store, "--json").json["unrecorded"]
    assert 0 < len(listed) < len(entries) - len(through_first)
    assert set(listed) < {entry.artifact_id for entry in entries[len(through_first) :]}

    refused = invoke("gc", "--store", store, "--min-age", "0", "--delete")
    assert (refused.status, command in refused.errors) == (2, True)

    manifests = {path: path.stat().st_mtime_ns for path in store.glob("artifacts/*/*/manifest.json")}
    words = ("--name", "small", "--check", "--iterations", "2", "--no-prefect")
    mended = invoke("train", finished.config, "--store", store, *words)
    assert mended.status == 0, mended.errors
    assert {path: path.stat().st_mtime_ns for path in store.glob("artifacts/*/*/manifest.json")} == manifests
    assert {entry.artifact_id for entry in recorded(store)} == {entry.artifact_id for entry in entries}
    assert all(entry.reused for entry in recorded(store)[len(through_first) :])
    assert invoke("lineage", "verify", "small", "--store", store).status == 0
    assert "Warning" not in invoke("status", "small", "--store", store).output


def test_what_a_kill_leaves_is_not_taken_for_an_older_ledger(store: Path) -> None:
    """After each line of the run: a kill leaves, at most, all that could be made from what was recorded."""
    entries, artifacts = recorded(store), ArtifactStore(str(store))
    left = []
    for count in range(len(entries), 0, -1):
        lines = entries[:count]
        put_back(store, lines)
        known = {entry.artifact_id for entry in lines}
        for manifest in list(artifacts.list()):
            if manifest.artifact_id not in known and not set(manifest.inputs.values()) <= known:
                artifacts.remove(manifest)
        left.append(sum(1 for _ in artifacts.list()) - len(known))
        assert found(store) is None, lines[-1]
    assert max(left) >= 2  # such as two shards


def commit(
    store: Path, run: Run, stage: str, number: int, inputs: dict[str, str], kind: ArtifactKind = "checkpoint"
) -> str:
    recipe = Recipe(stage, 1, {"number": number}, inputs, 0, kind=kind)
    with ArtifactStore(str(store)).create(recipe, run=run.name, iteration=number) as staging:
        staging.commit()
    return recipe.artifact_id


def record(run: Run, stage: str, number: int, artifact_id: str, kind: ArtifactKind = "checkpoint") -> None:
    run.record(number, stage, artifact_id, kind=kind, reused=False, seconds=0.0)


def pair(store: Path, run: Run, number: int) -> tuple[str, str]:
    """Two artifacts, the second made from the first, that no ledger names."""
    first = commit(store, run, "first", number, {})
    return first, commit(store, run, "second", number, {"first": first})


def test_what_something_else_explains_is_not_reported(tmp_path: Path) -> None:
    store = tmp_path / "store"
    runs = RunStore(str(store))
    run, other = runs.create("run", {"method": {}}), runs.create("other", {"method": {}})
    pair(store, run, 1)
    assert found(store, "run") is None  # an empty ledger is not judged
    record(run, "zeroth", 0, commit(store, run, "zeroth", 0, {}))
    assert found(store, "run") is None  # made before the first line, by an earlier run of this name

    pair(store, run, 2)
    lost = found(store, "run")
    assert lost is not None
    assert [(each.stage, each.iteration) for each in lost.artifacts] == [("second", 2)]
    assert found(store, "other") is None
    record(run, "second", 2, commit(store, run, "second", 2, {}))
    assert found(store, "run") is None  # the place was made again later, as after an edit

    for number, artifact_id in enumerate(pair(store, run, 3)):
        record(other, f"of-{number}", 3, artifact_id)
    assert found(store, "run") is None  # made again for another run

    tasks = commit(store, run, "tasks_on_request", 4, {}, "tasks")
    commit(store, run, "evaluate_on_request", 4, {"tasks": tasks}, "evaluation")
    assert found(store, "run") is None  # nothing is trained from it


def test_runs_that_are_not_trained_are_told_to_put_the_ledger_back(tmp_path: Path) -> None:
    store = tmp_path / "store"
    run = RunStore(str(store)).create("notes", {"standalone": True})
    record(run, "zeroth", 0, commit(store, run, "zeroth", 0, {}))
    pair(store, run, 1)
    lost = found(store, "notes")
    assert lost is not None
    assert lost.sentence.endswith("Put the newest copy of the ledger and its head back.")


def test_a_line_that_says_something_else_than_the_manifest_is_found(tmp_path: Path) -> None:
    store = tmp_path / "store"
    run = RunStore(str(store)).create("run", {"method": {}})
    artifact_id = commit(store, run, "update", 1, {})
    record(run, "update", 1, artifact_id)
    (line,) = run.recorded()
    for changes, problems in (
        ({"iteration": 3}, ["update of iteration 3, and it is update of iteration 1"]),
        ({"stage": "bootstrap"}, ["bootstrap of iteration 1, and it is update of iteration 1"]),
        ({"iteration": 3, "reused": True}, []),
        ({"recorded_at": line.recorded_at + timedelta(hours=1)}, []),
    ):
        put_back(store, [line.model_copy(update=changes)], "run")
        told = verify_run(ArtifactStore(str(store)), run).problems
        assert told == [f"the ledger names artifact {artifact_id} as {each}" for each in problems]


def test_a_removed_run_is_gone_and_its_artifacts_stay(tmp_path: Path) -> None:
    history = write_history(str(tmp_path / "store"))
    (tmp_path / "store" / "runs" / "base" / "tensorboard").mkdir()
    (tmp_path / "store" / "runs" / "base" / "report.html").write_text("page")
    before = set((tmp_path / "store" / "artifacts").rglob("*"))
    remove_run(history.store.uri, "base")
    assert RunStore(history.store.uri).list() == ["branch"]
    assert [path.name for path in (tmp_path / "store" / "runs").iterdir()] == ["branch"]
    assert set((tmp_path / "store" / "artifacts").rglob("*")) == before
    RunStore(history.store.uri).create("base", {})


def test_a_run_that_another_began_from_is_kept(tmp_path: Path) -> None:
    runs = RunStore(str(tmp_path))
    for name in ("one", "two"):
        runs.create(name, {})
    write_origin(str(tmp_path), "two", BranchOrigin(run="one", iteration=1, stage="update_policy"))
    with pytest.raises(InputError, match=r"cannot be removed: two began from it .* Remove that first"):
        remove_run(str(tmp_path), "one")
    remove_run(str(tmp_path), "two")
    remove_run(str(tmp_path), "one")
    assert runs.list() == []


def test_a_run_whose_nights_are_still_there_is_kept(tmp_path: Path) -> None:
    runs = RunStore(str(tmp_path))
    for name, settings in (("one", {}), ("one-traffic", {IMPORTED: {"served": "one"}}), ("night", {})):
        runs.create(name, settings)
    night = OfflineOrigin(
        run="one-traffic", first_iteration=1, last_iteration=1, checkpoint_id=None, evaluates=True
    )
    write_origin(str(tmp_path), "night", night)
    for name in ("one", "one-traffic"):
        with pytest.raises(InputError, match=r"cannot be removed: night began from it"):
            remove_run(str(tmp_path), name)
    for name in ("night", "one-traffic", "one"):
        remove_run(str(tmp_path), name)
    assert runs.list() == []


def test_a_run_whose_users_may_ask_to_be_forgotten_is_kept(tmp_path: Path) -> None:
    runs = RunStore(str(tmp_path))
    runs.create("one", {})
    change_alias(str(tmp_path), "one", alias_change("0" * 64))
    with pytest.raises(InputError, match=r"serving/one has its aliases, .* remove that folder, and then"):
        remove_run(str(tmp_path), "one")
    assert runs.list() == ["one"]
    shutil.rmtree(tmp_path / "serving" / "one")
    remove_run(str(tmp_path), "one")
    assert runs.list() == []


def test_a_run_that_somebody_works_on_is_kept_and_says_who(tmp_path: Path) -> None:
    runs = RunStore(str(tmp_path))
    runs.create("one", {})
    assert runs.holder("one") is None
    code = (
        "import sys; from storage.runs.run import RunStore\n"
        "with RunStore(sys.argv[1]).open('one').lock(): print('held', flush=True); sys.stdin.read()"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "held\n"
    holder = runs.holder("one")
    assert holder is not None
    assert holder.startswith(f"process {worker.pid} on ")
    with pytest.raises(RunBusy, match=f"run one is being worked on by process {worker.pid}"):
        remove_run(str(tmp_path), "one")
    worker.communicate()
    assert runs.list() == ["one"]
    assert runs.holder("one") is None
    remove_run(str(tmp_path), "one")
    assert runs.list() == []


def test_a_run_of_an_object_store_is_removed(tmp_path: Path) -> None:
    uri = f"memory://{tmp_path.name}"
    runs = RunStore(uri)
    run = runs.create("one", {})
    with run.lock():
        run.record(None, "bootstrap", "0" * 64, kind="checkpoint", reused=False, seconds=0.0)
    remove_run(uri, "one")
    assert runs.list() == []
    assert runs.create("one", {}).stages() == []
