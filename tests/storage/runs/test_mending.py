"""Damaged records of a run are refused by all readers, and made again by `train --check`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.artifacts.sealing import seal
from storage.errors import DamagedRecord
from storage.runs.run import RunStore
from tests.command_line.invoke import FinishedRun, invoke


def doubled(lines: list[bytes]) -> list[bytes]:
    return [lines[0], *lines]


def of_an_early_version(lines: list[bytes]) -> list[bytes]:
    """Lines that name neither their run nor the line before."""
    found = [json.loads(line) for line in lines]
    kept = [{k: v for k, v in line.items() if k not in ("run", "previous", "seal")} for line in found]
    return [seal(json.dumps(line)) + b"\n" for line in kept]


def without_the_last(lines: list[bytes]) -> list[bytes]:
    return lines[:-1]


@pytest.mark.parametrize("damage", [doubled, without_the_last, of_an_early_version])
def test_readers_refuse_a_changed_ledger_and_check_mends_it(
    finished: FinishedRun, tmp_path: Path, damage: Callable[[list[bytes]], list[bytes]]
) -> None:
    store = tmp_path / "store"
    shutil.copytree(finished.store, store)
    ledger = store / "runs" / "small" / "ledger.jsonl"
    places = where(store)
    ledger.write_bytes(b"".join(damage(ledger.read_bytes().splitlines(keepends=True))))
    for words in (("status", "small"), ("report", "small"), ("lineage", "verify", "small")):
        refused = invoke(*words, "--store", store)
        assert refused.status == 2
        assert "train CONFIG --name small --check" in " ".join(refused.errors.split())
    mended = invoke("train", finished.config, "--store", store, "--check", "--no-prefect")
    assert mended.status == 0, mended.errors
    assert "Made again: " in mended.errors
    assert where(store) == places
    assert invoke("lineage", "verify", "small", "--store", store).status == 0
    kept = next((store / "runs" / "small").glob("damaged-*"))
    assert (kept / "ledger.jsonl").is_file()


def test_the_files_of_two_runs_may_not_be_swapped(tmp_path: Path, store_uri: str) -> None:
    runs = RunStore(store_uri)
    for name in ("a", "b"):
        runs.create(name, {"name": name}).record(
            1, "evaluate", name, kind="evaluation", reused=False, seconds=1.0
        )
    a, b = runs.open("a"), runs.open("b")
    for file in ("run.json", "ledger.jsonl"):
        paths = [runs._root.join("runs", name, file) for name in ("a", "b")]
        contents = [runs._root.fs.cat_file(path) for path in paths]
        for path, content in zip(paths, reversed(contents), strict=True):
            runs._root.fs.pipe_file(path, content)
    with pytest.raises(DamagedRecord, match=r"a/run\.json holds the settings of run b"):
        runs.open("a")
    with pytest.raises(DamagedRecord, match="line 1 is of run a"):
        b.recorded()
    with a.lock():
        assert "line 1 is of run b" in a.mend_ledger(lambda _found: [])
    assert a.recorded() == []
    assert "holds the settings of run b" in runs.mend_settings("a", {"name": "a"})
    assert runs.open("a").config == {"name": "a"}


def test_a_ledger_over_several_leases_is_one_chain(object_store_uri: str) -> None:
    runs = RunStore(object_store_uri)
    run = runs.create("run", {})
    for number in range(3):
        with run.lock():
            for stage in ("first", "second"):
                run.record(number, stage, "id", kind="evaluation", reused=False, seconds=1.0)
    assert [entry.iteration for entry in RunStore(object_store_uri).open("run").recorded()] == [
        0,
        0,
        1,
        1,
        2,
        2,
    ]
    root = runs._root
    second = root.join("runs", "run", "ledger-00000002.jsonl")
    for path in (second, second.replace(".jsonl", ".head.json")):
        root.fs.rm_file(path)
    broken = RunStore(object_store_uri).open("run")
    with pytest.raises(DamagedRecord, match=r"ledger-00000003\.jsonl, line 1 does not follow"):
        broken.recorded()
    with broken.lock():
        assert broken.mend_ledger(lambda _found: []) != ""
        broken.record(9, "first", "id", kind="evaluation", reused=False, seconds=1.0)
    assert [entry.iteration for entry in RunStore(object_store_uri).open("run").recorded()] == [0, 0, 2, 2, 9]


def test_a_dropped_request_to_forget_is_found_and_made_again(finished: FinishedRun, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(finished.store, store)
    folder = store / "runs" / "small"
    before = {path.name: path.read_bytes() for path in folder.glob("ledger*")}
    entry_id = invoke("memory", "list", "small", "--store", store, "--json").json["shown"][0]["entry_id"]
    assert invoke("memory", "forget", "small", entry_id, "--reason", "wrong", "--store", store).status == 0
    for name, content in before.items():  # an older copy of the ledger, whole in itself
        (folder / name).write_bytes(content)
    found = invoke("lineage", "verify", "small", "--store", store)
    assert found.status == 1
    assert "to forget an entry of the memory is in the store and not in the ledger" in found.output
    mended = invoke("train", finished.config, "--store", store, "--check", "--no-prefect")
    assert mended.status == 0, mended.errors
    assert invoke("lineage", "verify", "small", "--store", store).status == 0
    assert entry_id not in invoke("memory", "list", "small", "--store", store, "--json").output


def where(store: Path) -> set[tuple[object, ...]]:
    """Place and artifact of each line of the run's ledger."""
    entries = RunStore(str(store)).open("small").stages()
    return {(entry.iteration, entry.stage, entry.key, entry.artifact_id) for entry in entries}


def test_two_processes_that_begin_a_run_are_told_of_each_other(tmp_path: Path) -> None:
    """The second saw no run yet; the first has created and locked it meanwhile."""
    runs = RunStore(str(tmp_path / "store"))
    config = {"name": "k"}
    first = runs.open_or_create("k", config)
    late = RunStore(str(tmp_path / "store"))
    seen = [[], ["k"]]
    late.list = lambda: seen.pop(0)  # type: ignore[method-assign]
    with first.lock():
        second = late.open_or_create("k", config)
        with pytest.raises(Exception, match=r"run k is being worked on by process \d+ on "), second.lock():
            pass
