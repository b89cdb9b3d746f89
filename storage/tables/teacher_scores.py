"""What a teacher says of a policy's tokens when it knows more: scores of self-distillation, in Parquet."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import store_errors
from storage.tables.parquet import TableFormat, require_format, schema_of, write_rows


def _none() -> npt.NDArray[Any]:
    return np.zeros(0, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class TeacherScores:
    """The scores of one trajectory behind one prompt. Lists are empty where nothing was scored.
    Log-probabilities are in nats, after the temperature that sampled."""

    trajectory_id: str
    branch: int
    """0: the prompt with hindsight. With contrast, 1 and more: prompts with wrong hints."""
    source_trajectory_id: str | None
    """The trajectory whose text the prompt also held: a reflection, or another attempt. That of the
    trajectory itself for feedback on it, and for a solution of its task."""
    not_scored: str
    """Why nothing was scored; empty where it was."""
    logprobs: npt.NDArray[Any] = field(default_factory=_none)
    """Of each response token, 0 where the policy did not sample it."""
    advantages: npt.NDArray[Any] = field(default_factory=_none)
    """What is added to the advantage of each response token; empty where the scores have a loss of their own,
    and for wrong hints."""
    entropies: npt.NDArray[Any] = field(default_factory=_none)
    """Of each sampled token alone."""
    support_ids: npt.NDArray[Any] = field(default_factory=_none)
    """The tokens that are compared, place by place: as many for each sampled token."""
    support_logprobs: npt.NDArray[Any] = field(default_factory=_none)
    """Of these tokens."""
    tail_logprobs: npt.NDArray[Any] = field(default_factory=_none)
    """Of all other tokens together, for each sampled token; -inf where there are no others."""


_LISTS: Mapping[str, pa.DataType] = {
    "logprobs": pa.float32(),
    "advantages": pa.float32(),
    "entropies": pa.float32(),
    "support_ids": pa.int32(),
    "support_logprobs": pa.float32(),
    "tail_logprobs": pa.float32(),
}

TEACHER_SCORES = TableFormat(
    name="teacher scores",
    version=2,
    schema=schema_of(TeacherScores, **{name: pa.list_(kind) for name, kind in _LISTS.items()}),
    dictionary=("not_scored",),
    float_lists=tuple(f"{name}.list.element" for name, kind in _LISTS.items() if kind == pa.float32()),
)


def write_teacher_scores(path: Path, scores: Sequence[TeacherScores]) -> int:
    """Write scores and return how many. Equal scores give equal bytes."""
    return write_rows(path, map(vars, scores), TEACHER_SCORES)


def read_teacher_scores(path: Path) -> Iterator[TeacherScores]:
    """The scores of a file, in order; lists that its version does not have are empty.

    Raises StoreError for a file that is not in this format.
    """
    require_format(path, TEACHER_SCORES)
    with store_errors("read", path):
        content = pq.ParquetFile(path).read().combine_chunks()
    # Numbers in lists are many: as Python's they would take ten times the memory.
    lists = {name: _split(content[name]) for name in _LISTS if name in content.column_names}
    plain = {"branch": 0}
    for number, row in enumerate(content.drop_columns(list(lists)).to_pylist()):
        yield TeacherScores(**plain | row | {name: values[number] for name, values in lists.items()})


def _split(column: pa.ChunkedArray) -> list[npt.NDArray[Any]]:
    found: list[npt.NDArray[Any]] = []
    for chunk in column.chunks:
        ends = chunk.offsets.to_numpy()
        found += np.split(chunk.values.to_numpy(), ends[1:-1]) if len(chunk) else []
    return found
