"""The training record: one row for each sequence that an update received, whether trained on or left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from storage.tables.parquet import TableFormat, scan_files, write_rows

SCHEMA_VERSION = 1
TRAINING_RECORD_FILE = "training_record.parquet"
"""Name of the file in the artifact of the checkpoint that the update made."""

REINFORCEMENT, SUPERVISED = "reinforcement", "supervised"
"""Values of `kind`."""

TRAINING_RECORD_SCHEMA = pa.schema(
    [
        pa.field("trajectory_id", pa.string(), nullable=False),  # the sequence that the update received
        pa.field("sft_row_id", pa.string()),  # null in reinforcement
        pa.field("kind", pa.string(), nullable=False),  # `reinforcement` or `supervised`
        pa.field("episode_id", pa.string(), nullable=False),
        pa.field("group_id", pa.string()),  # null in supervised training, as are the fields up to `advantage`
        pa.field("subgroup", pa.string()),
        pa.field("reward", pa.float32()),  # as in the trajectory
        pa.field("success", pa.bool_()),  # as in the trajectory
        pa.field("advantage", pa.float32()),  # its reward relative to the rewards of its group
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("task_type", pa.string(), nullable=False),
        pa.field("role", pa.string(), nullable=False),
        pa.field("iteration", pa.int32(), nullable=False),  # the one that sampled it
        pa.field("policy_version", pa.string(), nullable=False),  # the checkpoint that sampled it
        pa.field("weight", pa.float32(), nullable=False),  # its weight in the loss
        pa.field("not_trained", pa.string()),  # why it was left out; null if it was trained on
        pa.field("steps", pa.int32(), nullable=False),  # optimizer steps that trained it
        pa.field("trained_tokens", pa.int64(), nullable=False),  # its tokens with a loss, over all steps
        pa.field("mean_ratio", pa.float32()),  # null in supervised training, as are the two that follow
        pa.field("clipped_share", pa.float32()),  # share of its tokens whose gradient the clipping removed
        pa.field("mismatch", pa.float32()),  # mean difference from the sampler's log-probabilities, nats
        pa.field("entropy", pa.float32()),  # mean at its trained tokens, nats
        pa.field("loss", pa.float32()),  # its own part of the loss
        pa.field("token_logprobs", pa.list_(pa.float32())),  # null unless tokens are recorded
        pa.field("token_entropies", pa.list_(pa.float32())),  # null unless tokens are recorded
    ]
)
TRAINING_RECORD = TableFormat(
    name="training_record",
    version=SCHEMA_VERSION,
    schema=TRAINING_RECORD_SCHEMA,
    dictionary=(
        "kind",
        "episode_id",
        "group_id",
        "subgroup",
        "task_id",
        "task_type",
        "role",
        "policy_version",
        "not_trained",
    ),
    float_lists=("token_logprobs.list.element", "token_entropies.list.element"),
)


def write_training_record(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write a Parquet file and return its number of rows. Equal rows give equal bytes.

    Raises KeyError for a row that lacks a column; unknown values must be None.
    """
    return write_rows(path, rows, TRAINING_RECORD)


def scan_training_records(paths: Sequence[Path], path_column: str | None = None) -> pl.LazyFrame:
    """A lazy frame over exactly these files; only the columns and row groups asked for are read.

    Args:
        path_column: name of an additional column with the path of each row's file.
    """
    return scan_files(paths, TRAINING_RECORD, path_column)
