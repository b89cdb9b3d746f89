from __future__ import annotations

from pathlib import Path

import pytest

from storage.tables.training import scan_training_records, write_training_record
from tests.training_stores import record_row


def test_what_is_not_known_is_null_and_equal_rows_give_equal_bytes(tmp_path: Path) -> None:
    rows = [record_row(loss=-0.125, token_logprobs=(-0.5, 0.0)), record_row(not_trained="zero_advantage")]
    one, two = tmp_path / "one.parquet", tmp_path / "two.parquet"
    assert write_training_record(one, rows) == write_training_record(two, rows) == 2
    assert one.read_bytes() == two.read_bytes()
    found = scan_training_records([one]).select("not_trained", "loss", "token_logprobs").collect()
    assert found.rows() == [(None, -0.125, [-0.5, 0.0]), ("zero_advantage", None, None)]


def test_a_row_must_have_every_column(tmp_path: Path) -> None:
    row = record_row()
    del row["advantage"]
    with pytest.raises(KeyError, match="advantage"):
        write_training_record(tmp_path / "record.parquet", [row])
