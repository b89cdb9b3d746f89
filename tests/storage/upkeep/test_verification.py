from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lancedb
import polars as pl
import pytest

from storage.artifacts.manifest import FileEntry, Manifest, Problems
from storage.artifacts.recipe import Recipe
from storage.artifacts.sealing import seal
from storage.artifacts.store import ArtifactStore, _local_problems
from storage.errors import DamagedRecord, StoreError
from storage.filesystem import open_root
from storage.memory.entries import Embedder, MemoryEntry, write_delta
from storage.memory.view import ReflectionMemory
from storage.runs.documents import BranchOrigin, write_origin
from storage.runs.ledger import Ledger, LedgerEntry
from storage.runs.run import RunStore
from storage.tables.parquet import TableFormat, scan_files
from storage.tables.trajectories import Trajectory, write_trajectories
from storage.upkeep.verification import verify_run
from tests.command_line.invoke import FinishedRun, invoke
from tests.training_stores import record, write_training_store


def add(tiny_run: Any, stage: str, write: Callable[[Path], object], **inputs: str) -> str:
    recipe = Recipe(stage, 1, {"added": True}, inputs, 0)
    with tiny_run.store.create(recipe, run="run", iteration=2) as staging:
        write(staging.path)
        staging.commit()
    tiny_run.run.record(2, stage, recipe.artifact_id, kind=recipe.kind, reused=False, seconds=1.0)
    return recipe.artifact_id


def test_a_whole_run_has_no_problems_and_its_rows_are_counted(tiny_run: Any, embedder: Embedder) -> None:
    ReflectionMemory(tiny_run.store.uri, "run", tiny_run.store, embedder).at(tiny_run.memory)
    report = verify_run(tiny_run.store, tiny_run.run)
    assert report.problems == []
    assert (report.artifacts, report.files) == (5, 4)
    assert (report.trajectories, report.memory_entries, report.sft_rows) == (3, 1, 1)


def test_a_damaged_record_of_what_a_run_was_begun_from_is_found(tiny_run: Any) -> None:
    origin = BranchOrigin(run="first", iteration=2, stage="update_policy")
    write_origin(tiny_run.store.uri, "run", origin)
    assert verify_run(tiny_run.store, tiny_run.run).problems == []
    path = Path(tiny_run.store.uri) / "runs" / "run" / "origin.json"
    path.write_text(path.read_text().replace("update_policy", "update_polici"))
    with pytest.raises(StoreError, match=r"origin\.json was changed after it was written"):
        verify_run(tiny_run.store, tiny_run.run)


def test_the_table_of_the_memory_may_be_absent_but_not_different(tiny_run: Any, embedder: Embedder) -> None:
    assert verify_run(tiny_run.store, tiny_run.run).problems == []
    ReflectionMemory(tiny_run.store.uri, "run", tiny_run.store, embedder).at(tiny_run.memory)
    table = lancedb.connect(Path(tiny_run.store.uri) / "memory" / "run").open_table("reflections")
    table.add(table.to_arrow())
    table.tags.update(tiny_run.memory, table.version)
    (problem,) = verify_run(tiny_run.store, tiny_run.run).problems
    assert "differs from its artifacts; delete it" in problem


def test_every_changed_file_of_the_memorys_table_is_found(
    tiny_run: Any, entry: Callable[..., MemoryEntry], embedder: Embedder
) -> None:
    newest = tiny_run.memory
    for number in (2, 3):
        given = entry(number, source_trajectory_id="reflection", policy_version=tiny_run.checkpoint)
        recipe = Recipe("index_memory", 1, {"number": number}, {"memory": newest}, 0, kind="memory")
        with tiny_run.store.create(recipe, run="run", iteration=number) as staging:
            write_delta(staging.path / "entries.parquet", [given], embedder)
            staging.commit(memory_version=recipe.artifact_id)
        newest = recipe.artifact_id
        tiny_run.run.record(number, recipe.stage, newest, kind=recipe.kind, reused=False, seconds=1.0)
    ReflectionMemory(tiny_run.store.uri, "run", tiny_run.store, embedder).at(newest)
    assert verify_run(tiny_run.store, tiny_run.run).problems == []
    table = Path(tiny_run.store.uri) / "memory" / "run" / "reflections.lance"
    files = [path for kind in ("data", "_versions") for path in (table / kind).iterdir() if path.is_file()]
    files = [path for path in files if "hint" not in path.name]
    assert {path.suffix for path in files} == {".lance", ".manifest"}
    for path in files:
        whole = path.read_bytes()
        for content in (whole + b"x", whole[:-1], b"", None):
            path.unlink()
            if content is not None:
                path.write_bytes(content)
            (problem,) = verify_run(tiny_run.store, tiny_run.run).problems
            assert "the memory's table changed" in problem, (path, content)
            path.write_bytes(whole)
    assert verify_run(tiny_run.store, tiny_run.run).problems == []


def test_damage_is_found_wherever_the_ledger_reaches(tiny_run: Any) -> None:
    path = tiny_run.store.open(tiny_run.shard).path("trajectories.parquet")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    (problem,) = verify_run(tiny_run.store, tiny_run.run).problems
    assert problem.startswith(f"artifact {tiny_run.shard} (rollout_shard): ")
    assert "trajectories.parquet has SHA-256" in problem


def test_a_missing_artifact_is_found(tiny_run: Any) -> None:
    shutil.rmtree(Path(tiny_run.store.uri) / "artifacts" / "bootstrap")
    problems = verify_run(tiny_run.store, tiny_run.run).problems
    assert (
        f"artifact {tiny_run.checkpoint}, named by the ledger (iteration 1, bootstrap), is not in the store"
        in problems
    )


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"parent_trajectory_id": "nowhere"}, "new names parent_trajectory_id nowhere, which does not exist"),
        ({"memory_entry_ids": ("m-001", "m-999")}, "new names memory_entry_ids m-999, which does not exist"),
        ({"policy_version": "0" * 32}, f"new names policy_version {'0' * 32}, which does not exist"),
        ({"memory_version": "1" * 32}, f"new names memory_version {'1' * 32}, which does not exist"),
        ({"trajectory_id": "first"}, "first appears more than once"),
    ],
)
def test_a_broken_link_is_found(
    tiny_run: Any, trajectory: Trajectory, changes: dict[str, Any], problem: str
) -> None:
    row = replace(trajectory, **{"trajectory_id": "new", **changes})
    add(tiny_run, "rollout_shard", lambda folder: write_trajectories(folder / "trajectories.parquet", [row]))
    assert verify_run(tiny_run.store, tiny_run.run).problems == [f"trajectory_id {problem}"]


def test_a_memory_entry_without_its_reflection_or_twice_is_found(
    tiny_run: Any, entry: Callable[..., MemoryEntry], embedder: Embedder
) -> None:
    same = entry(1, source_trajectory_id="lost", policy_version=tiny_run.checkpoint)
    add(
        tiny_run,
        "index_memory",
        lambda folder: write_delta(folder / "entries.parquet", [same], embedder),
        memory=tiny_run.memory,
    )
    assert verify_run(tiny_run.store, tiny_run.run).problems == [
        "entry_id m-001 appears more than once",
        "entry_id m-001 names source_trajectory_id lost, which does not exist",
    ]


def test_links_are_not_followed_through_damaged_files(tiny_run: Any) -> None:
    store: ArtifactStore = tiny_run.store
    path = store.open(tiny_run.memory).path("entries.parquet")
    path.write_bytes(b"")
    problems = verify_run(store, tiny_run.run).problems
    assert len(problems) == 1
    assert f"artifact {tiny_run.memory}" in problems[0]


def test_retention_may_go_on_while_files_are_hashed(tiny_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a run that trains: files that are to be read next are gone."""
    place = "storage.artifacts.store._local_problems"

    def late(manifest: Manifest, present: Sequence[FileEntry], folder: Path) -> Problems:
        if manifest.artifact_id == tiny_run.shard:
            monkeypatch.undo()
            tiny_run.store.prune(tiny_run.shard, ["trajectories.parquet"], "a rule")
        return _local_problems(manifest, present, folder)

    monkeypatch.setattr(place, late)
    report = verify_run(tiny_run.store, tiny_run.run)
    assert report.problems == []
    assert report.trajectories == 3


def test_retention_may_go_on_while_rows_are_followed(tiny_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(paths: Sequence[Path], table: TableFormat, **named: Any) -> pl.LazyFrame:
        frame = scan_files(paths, table, **named)
        if any(path.name == "trajectories.parquet" for path in paths):
            monkeypatch.undo()
            tiny_run.store.prune(tiny_run.shard, ["trajectories.parquet"], "a rule")
        return frame

    monkeypatch.setattr("storage.lineage.rows.scan_files", late)
    report = verify_run(tiny_run.store, tiny_run.run)
    assert report.problems == []
    assert report.trajectories == 3


def test_a_training_record_names_trajectories_of_the_run(tmp_path: Path) -> None:
    made = write_training_store(str(tmp_path / "store"))
    assert verify_run(made.store, made.run("run")).problems == []
    strange = made.commit(
        "update-3",
        "checkpoint",
        3,
        inputs={"checkpoint": "tuned", "rollouts": "rollouts-2"},
        write=record({"trajectory_id": "stranger"}),
    )
    assert verify_run(made.store, made.run("run")).problems == [
        f"training record of checkpoint {strange} names trajectory_id stranger, which does not exist"
    ]


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


def test_a_ledger_is_made_again_in_its_own_order_though_the_clock_went_back(tmp_path: Path) -> None:
    """The line of `new` was moved to the front, that of `old` is there twice more, once
    changed, and `new` was written by a clock that is an hour behind."""
    run = RunStore(str(tmp_path)).create("run", {})
    path = tmp_path / "runs" / "run" / "ledger.jsonl"
    ledger = Ledger(open_root(str(tmp_path)), str(path), "run")
    for artifact_id, hour in (("first", 11), ("old", 12), ("new", 11)):
        ledger.append(
            LedgerEntry(
                iteration=1,
                stage="first" if artifact_id == "first" else "second",
                kind="evaluation",
                key="",
                artifact_id=artifact_id,
                reused=False,
                seconds=1.0,
                recorded_at=datetime(2026, 1, 1, hour, tzinfo=UTC),
            )
        )
    first, old, new = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(new + first + old + old + old.replace(b"1.0", b"1.5"))
    with run.lock():
        assert "line 1 does not follow" in run.mend_ledger(lambda _found: [])
    assert [entry.artifact_id for entry in run.recorded()] == ["first", "old", "new"]
    assert [entry.artifact_id for entry in run.stages()] == ["first", "new"]


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
