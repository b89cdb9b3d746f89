"""Columns that the table of a memory has besides those of its entries, for its indexes and for fast reading.

- `index_key` is the key of the vector index: the entry's vector, then 32 numbers (a code) for its task type
  and 32 for its environment. A vector index puts near vectors into one partition and searches the partitions
  nearest to a query. By their vectors alone, entries that match a filter can lie in any partition: if all
  entries near the query are of another task type, most of the table has to be searched. With the codes,
  entries of one type lie together, and a query with the code of its type begins there. A query without codes
  is equally near to all types.
- `entry` is the whole entry as JSON. LanceDB reads each column separately. From a column with few different
  values, reading ten rows takes as long as reading thousands.
- `credit_step` is the entry's credit in steps of 1/64: an index of few different values answers a range query
  faster than an index of `credit`.
- `text_key` is equal for entries with the same text and task type.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage.memory.entries import ENTRY_COLUMNS, MemoryEntry, entry_of, text_key

INDEX_KEY = "index_key"
ENTRY = "entry"
CREDIT_STEP = "credit_step"
TEXT_KEY = "text_key"

_CODE_LENGTH = 32
_NO_CODE = np.zeros(_CODE_LENGTH, np.float32)
_STEPS = 64
_FIRST_STEP, _LAST_STEP = -2 * _STEPS, 2 * _STEPS - 1
"""First and last step: those of credits -2 and just below 2. Credits beyond are clipped to them."""


def index_columns(dimension: int) -> list[pa.Field]:
    """The columns' types, for vectors of `dimension` numbers."""
    return [
        pa.field(CREDIT_STEP, pa.int32()),
        pa.field(TEXT_KEY, pa.string()),
        pa.field(ENTRY, pa.string()),
        # Half precision is enough to choose candidates, which are then compared by their exact vectors.
        pa.field(INDEX_KEY, pa.list_(pa.float16(), dimension + 2 * _CODE_LENGTH)),
    ]


def with_index_columns(rows: pa.Table) -> pa.Table:
    """Entries with these additional columns."""
    vectors = rows.column("vector").combine_chunks().flatten().to_numpy().reshape(rows.num_rows, -1)
    # Every entry has both codes, so that all keys have the same norm and a missing code makes none nearer.
    codes = [
        np.stack([_code(name or "") for name in rows.column(column).to_pylist()])
        for column in ("task_type", "environment")
    ]
    keys = np.concatenate([vectors, *codes], axis=1).astype(np.float16)
    steps = pa.array(_steps(rows.column("credit").to_numpy()))
    said = zip(rows.column("task_type").to_pylist(), rows.column("text").to_pylist(), strict=True)
    text_keys = pa.array([text_key(task_type, text) for task_type, text in said], pa.string())
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    entries = map(encode, rows.select(ENTRY_COLUMNS).to_pylist())
    values = [steps, text_keys, pa.array(entries, pa.string())]
    fields = index_columns(vectors.shape[1])
    values.append(pa.FixedSizeListArray.from_arrays(pa.array(keys.ravel()), keys.shape[1]))
    for field, column in zip(fields, values, strict=True):
        rows = rows.append_column(field, column)
    return rows


def read_entry(text: str) -> MemoryEntry:
    """An entry from the JSON in its column `entry`."""
    return entry_of(json.loads(text))


def index_key_of(
    query: npt.NDArray[np.float32], task_type: str | None, environment: str | None
) -> npt.NDArray[np.float16]:
    """The key to search for in `index_key`: near `query`, of one task type and environment; None for any."""
    codes = [_NO_CODE if name is None else _code(name) for name in (task_type, environment)]
    key: npt.NDArray[np.float16] = np.concatenate([query, *codes]).astype(np.float16)
    return key


def credit_condition(minimum: float) -> str:
    """`credit >= minimum` in LanceDB's SQL, by `credit_step` as far as its range allows."""
    step = int(_steps(np.array([minimum]))[0])
    if step == _LAST_STEP:
        return f"credit >= {minimum!r}"
    if minimum == step / _STEPS and step != _FIRST_STEP:
        return f"credit_step >= {step}"
    return f"(credit_step > {step} OR (credit >= {minimum!r} AND credit < {(step + 1) / _STEPS!r}))"


def _steps(credit: npt.NDArray[np.float64]) -> npt.NDArray[np.int32]:
    return np.clip(np.floor(credit * _STEPS), _FIRST_STEP, _LAST_STEP).astype(np.int32)


@lru_cache(maxsize=4096)
def _code(name: str) -> npt.NDArray[np.float32]:
    """A unit vector for a name. Those of two names are almost orthogonal."""
    digest = np.frombuffer(hashlib.sha256(name.encode("utf-8")).digest(), np.uint8)
    signs = np.unpackbits(digest)[:_CODE_LENGTH] * 2.0 - 1.0
    direction: npt.NDArray[np.float32] = (signs / np.sqrt(_CODE_LENGTH)).astype(np.float32)
    return direction
