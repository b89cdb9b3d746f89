from __future__ import annotations

from pathlib import Path

import pytest

from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact, InputError
from storage.lineage.reach import downstream
from storage.lineage.rows import LineageRows
from tests.histories import History, write_history


def test_columns_read_later_stand_beside_those_read_before(history: History) -> None:
    rows = LineageRows(history.store, list(history.store.list()))
    assert rows.read("trajectory", ["trajectory_id"]).columns == ["trajectory_id", "artifact_id"]
    together = rows.read("trajectory", ["task_id", "trajectory_id"])
    tasks = dict(together.select("trajectory_id", "task_id").rows())
    assert (tasks["first"], tasks["second-2"], tasks["first-3"], tasks["held-out"]) == (
        "t1",
        "t2",
        "t1",
        "h1",
    )
    holders = dict(together.select("trajectory_id", "artifact_id").rows())
    assert holders["first-3"] == history.ids["shard-3"]
    assert together.equals(rows.scan("trajectory", ["task_id", "trajectory_id"]).collect())


def test_rows_are_found_by_id_wherever_they_lie(history: History) -> None:
    rows = LineageRows(history.store, list(history.store.list()))
    found = rows.of_ids("trajectory", ["second-2", "held-out", "nowhere"], ["task_id"])
    assert found.rows(named=True) == [
        {"id": "held-out", "task_id": "h1", "artifact_id": history.ids["scores"]},
        {"id": "second-2", "task_id": "t2", "artifact_id": history.ids["shard-2"]},
    ]
    facts = rows.facts("trajectory", "first-3")
    assert (facts["task_id"], facts["artifact_id"]) == ("t1", history.ids["shard-3"])


def test_a_store_without_rows_has_tables_without_rows(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    read = LineageRows(store, []).read("trajectory", ["trajectory_id"])
    assert (read.height, read.columns) == (0, ["trajectory_id", "artifact_id"])
    with pytest.raises(InputError, match="has an id 'anything'"):
        downstream(store, None, "anything")


def test_a_damaged_file_is_found_before_it_is_read(tmp_path: Path) -> None:
    history = write_history(str(tmp_path / "store"))
    path = history.store.open(history.ids["shard-2"]).path("trajectories.parquet")
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(bytes(content))
    store = ArtifactStore(history.store.uri)
    with pytest.raises(DamagedArtifact, match=r"trajectories\.parquet has SHA-256"):
        downstream(store, None, "first")
    rows = LineageRows(ArtifactStore(history.store.uri), list(store.list()))
    with pytest.raises(DamagedArtifact, match=r"trajectories\.parquet has SHA-256"):
        rows.scan("trajectory", ["task_id"])
