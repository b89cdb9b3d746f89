from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lancedb
import pytest

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import StoreError
from storage.memory.embedder import Embedder
from storage.memory.entries import MemoryEntry, write_delta
from storage.memory.view import ReflectionMemory
from storage.runs.origin import BranchOrigin, write_origin
from storage.tables.trajectories import Trajectory, write_trajectories
from storage.upkeep.verification import verify_run
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
