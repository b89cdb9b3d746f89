"""Scores of a streamed evaluation: one row for each task and condition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from storage.tables.parquet import TableFormat, read_rows, write_rows

STREAM_SCORE_SCHEMA = pa.schema(
    [
        pa.field("condition", pa.string(), nullable=False),
        pa.field("encounter", pa.int32(), nullable=False),
        pa.field("realm", pa.string(), nullable=False),  # the held-out realm
        pa.field("stream", pa.int32(), nullable=False),
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("note", pa.string()),
        pa.field("first_attempt_success", pa.bool_()),  # null: not scored
        pa.field("retry_success", pa.bool_()),  # null: not made, or not scored
        pa.field("first_trajectory_id", pa.string(), nullable=False),  # the first attempt
        pa.field("reflection_trajectory_id", pa.string()),  # null: there was none
    ]
)
STREAM_SCORES = TableFormat(
    name="stream_scores",
    version=2,
    schema=STREAM_SCORE_SCHEMA,
    dictionary=("condition", "realm", "note"),
)


@dataclass(frozen=True)
class StreamScore:
    """One task of a stream under one condition."""

    condition: str
    """The kind of note that was given: `none`, `own`, `oracle` or `other`."""
    encounter: int
    """The task's place in its stream, from 1."""
    realm: str
    stream: int
    """Which stream of the realm, from 0."""
    task_id: str
    note: str | None
    """The note that was given; None if there was none (yet)."""
    first_attempt_success: bool | None
    """Success of the attempt that was given the note; None if it was not scored."""
    retry_success: bool | None
    """Success of a second attempt, after a reflection that was given the note as memory; also False after an
    ill-formed reflection. None if there was no second attempt, since the attempt without a note succeeded or
    was not scored, and if the second attempt was not scored."""
    first_trajectory_id: str
    reflection_trajectory_id: str | None


def write_stream_scores(path: Path, scores: Iterable[StreamScore]) -> int:
    """Write scores and return how many. Equal scores give equal bytes."""
    return write_rows(path, (asdict(score) for score in scores), STREAM_SCORES)


def read_stream_scores(paths: Sequence[Path]) -> list[StreamScore]:
    """The scores of files, in order. Raises StoreError for a file that is not in this format."""
    return [StreamScore(**row) for row in read_rows(paths, STREAM_SCORES)]
