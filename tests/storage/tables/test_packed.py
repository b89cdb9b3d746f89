from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from storage.tables.packed import packed_table
from storage.tables.parquet import TableFormat, arrow_table


def test_packed_numbers_are_the_columns_that_arrow_makes() -> None:
    kinds = {"bits": pa.int8(), "ids": pa.int32(), "logprobs": pa.float32()}
    table = TableFormat("numbers", 1, pa.schema([(name, pa.list_(kind)) for name, kind in kinds.items()]))
    # 1e300 is infinite in 32 bits; 0.1 is rounded.
    rows: list[dict[str, Any]] = [
        {"bits": (1, 0, -128), "ids": (2**31 - 1, -1), "logprobs": (-0.1, -1e300, float("inf"))},
        {"bits": (), "ids": [7], "logprobs": ()},
    ]
    for each in (rows, [*rows, dict.fromkeys(kinds)], []):
        assert packed_table(each, table).equals(arrow_table(each, table))
    for wrong in ({"ids": (2**31,)}, {"bits": (128,)}, {"ids": ("1",)}):
        with pytest.raises(pa.ArrowInvalid):
            packed_table([rows[0] | wrong], table)
