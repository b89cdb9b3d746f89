"""The first row, column and token in which two tables differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.evaluation.first_difference import first_row_difference
from storage.tables.parquet import write_rows
from storage.tables.trajectories import TRAJECTORIES
from tests.histories import trajectory_row


def table(path: Path, *rows: dict[str, Any]) -> Path:
    given = [trajectory_row(**{"trajectory_id": f"{path.stem}-{at}", **row}) for at, row in enumerate(rows)]
    write_rows(path, given, TRAJECTORIES)
    return path


def test_ids_versions_and_seeds_do_not_count(tmp_path: Path) -> None:
    a = table(tmp_path / "a.parquet", {"policy_version": "p", "seed": 1, "episode_id": "e"})
    b = table(tmp_path / "b.parquet", {"policy_version": "q", "seed": 2, "episode_id": "f"})
    assert first_row_difference(a, b, "rows") is None


def test_the_earliest_row_counts_whichever_column_it_is_in(tmp_path: Path) -> None:
    a = table(tmp_path / "a.parquet", {}, {"reward": 0.0, "task_id": "t7"}, {"feedback": "fell"})
    b = table(tmp_path / "b.parquet", {}, {"reward": 1.0, "task_id": "t7"}, {"feedback": "lost"})
    found = first_row_difference(a, b, "rows")
    assert found is not None
    assert (found.row, found.column, found.a, found.b) == (1, "reward", "0.0", "1.0")
    assert found.place["task_id"] == "t7"


@pytest.mark.parametrize(
    ("other", "token", "value"), [([3, 9, 5], 1, "9"), ([3, 4], 2, "the end"), ([3, 4, 5, 6], 3, "6")]
)
def test_the_first_token_that_differs_is_named(
    tmp_path: Path, other: list[int], token: int, value: str
) -> None:
    def response(tokens: list[int]) -> dict[str, Any]:
        return {"response_token_ids": tokens, "response_mask": [1] * 3, "behaviour_logprobs": [-0.5] * 3}

    a, b = table(tmp_path / "a.parquet", response([3, 4, 5])), table(tmp_path / "b.parquet", response(other))
    found = first_row_difference(a, b, "rows")
    assert found is not None
    assert (found.column, found.token, found.b) == ("response_token_ids", token, value)


def test_a_table_that_only_goes_on_differs_where_the_other_ends(tmp_path: Path) -> None:
    a, b = table(tmp_path / "a.parquet", {}), table(tmp_path / "b.parquet", {}, {"sample_index": 1})
    found = first_row_difference(a, b, "rows")
    assert found is not None
    assert (found.row, found.a, found.b, found.place["sample_index"]) == (1, "1 rows", "2 rows", 1)
