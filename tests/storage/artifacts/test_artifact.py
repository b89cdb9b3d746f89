"""What is kept of a pruned Parquet file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from storage.artifacts.artifact import NOT_OF_LINEAGE, copy_rows
from storage.artifacts.manifest import TABLE_KEY


def test_the_kept_columns_are_those_of_all_row_groups_in_order(tmp_path: Path) -> None:
    source, target = tmp_path / "rows.parquet", tmp_path / "kept_rows" / "rows.parquet"
    rows = pa.table(
        {
            "trajectory_id": ["a", "b", "c", "d", "e"],
            "response_token_ids": [[1, 2], [3], [], [4], [5]],
            "messages": ["[]"] * 5,
            "memory_entry_ids": [["m-1"], [], None, ["m-2", "m-3"], []],
        }
    ).replace_schema_metadata({TABLE_KEY: b"trajectories"})
    pq.write_table(rows, source, row_group_size=2)
    entry = copy_rows(source, tmp_path, "kept_rows/rows.parquet", NOT_OF_LINEAGE)
    kept = pq.read_table(source).drop_columns(["response_token_ids", "messages"])
    assert pq.read_table(target).equals(kept, check_metadata=True)
    assert pq.read_metadata(target).num_row_groups == 3
    assert (entry.path, entry.rows, entry.table) == ("kept_rows/rows.parquet", 5, "trajectories")
    assert entry.bytes == target.stat().st_size


def test_an_empty_file_keeps_its_columns(tmp_path: Path) -> None:
    source, target = tmp_path / "rows.parquet", tmp_path / "kept.parquet"
    empty = pa.table({"trajectory_id": pa.array([], pa.string()), "response_mask": pa.array([], pa.int8())})
    pq.write_table(empty, source)
    entry = copy_rows(source, tmp_path, "kept.parquet", NOT_OF_LINEAGE)
    assert (entry.rows, pq.read_table(target).column_names) == (0, ["trajectory_id"])
