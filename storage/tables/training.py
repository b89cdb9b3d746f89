"""Tables of training: the distillation dataset, and the record of what each update received.

The distillation dataset holds supervised rows that `datasets` loads and TRL's SFTTrainer takes. The training
record has one row for each sequence that an update received, whether trained on or left out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from storage.tables.parquet import TableFormat, read_rows, scan_files, schema_of, write_rows

SFT_VERSION = 3
_MESSAGES = pa.list_(pa.struct([pa.field("role", pa.string()), pa.field("content", pa.string())]))


@dataclass(frozen=True)
class SftRow:
    """One supervised sequence, in TRL's conversational prompt/completion format and as tokens."""

    sft_row_id: str
    prompt: tuple[Mapping[str, str], ...]
    """Messages up to the first turn of the assistant; in an imported row, up to the first that is trained."""
    completion: tuple[Mapping[str, str], ...]
    """The messages after them."""
    input_token_ids: tuple[int, ...]
    """Prompt and completion as tokens; empty in an imported row, which is only text."""
    loss_mask: tuple[int, ...]
    """1 on the tokens that are trained, one value for each token."""
    trajectory_id: str
    """The trajectory whose response it is; in an imported row the id of a conversation, which has none."""
    role: str | None
    """What it teaches: the trajectory's role if the prompt is its own, else a name for what is taught on the
    prompt of another trajectory; None in files of version 1."""
    reflection_trajectory_id: str | None
    """The reflection that led to it."""
    first_trajectory_id: str
    """The first attempt of the same episode."""
    memory_entry_ids: tuple[str, ...]
    """Memory entries that the reflection saw."""
    task_id: str
    task_type: str
    episode_id: str
    iteration: int
    """The one that sampled it."""
    policy_version: str
    """Artifact id of the checkpoint that sampled the attempt."""
    weight: float
    """In the loss."""
    tools: str | None = None
    """In an imported row: the tools that the assistant was told of, as JSON."""
    source_system: str | None = None
    """The format that the row was imported from, with the version of its mapping, such as `otel/1`; None in a
    row of the project's own trajectories, which has no other source columns either."""
    source_trace_id: str | None = None
    """The trace of the first answer that is trained."""
    source_span_ids: tuple[str, ...] | None = None
    """The calls whose answers are trained, in their order."""
    source_model: str | None = None
    """The model that wrote the answers, as the file names it."""

    def validate(self) -> None:
        """Raise ValueError, which names the row, when its columns contradict each other."""
        if len(self.loss_mask) != len(self.input_token_ids):
            raise ValueError(
                f"SFT row {self.sft_row_id} has {len(self.input_token_ids)} tokens and "
                f"{len(self.loss_mask)} loss_mask values; they must be as many"
            )
        if any(value not in (0, 1) for value in self.loss_mask):
            raise ValueError(f"SFT row {self.sft_row_id} has a loss_mask value that is neither 0 nor 1")
        if not self.completion or self.completion[0]["role"] != "assistant":
            raise ValueError(
                f"SFT row {self.sft_row_id} has a completion that does not begin with the assistant"
            )
        imported = self.source_system is not None  # what was answered before may be in another row
        if not imported and any(message["role"] == "assistant" for message in self.prompt):
            raise ValueError(f"SFT row {self.sft_row_id} has an assistant message in its prompt")


SFT_SCHEMA = schema_of(
    SftRow,
    prompt=_MESSAGES,
    completion=_MESSAGES,
    loss_mask=pa.list_(pa.int8()),
    source_span_ids=pa.list_(pa.string()),
)
SFT = TableFormat(
    name="sft",
    version=SFT_VERSION,
    schema=SFT_SCHEMA,
    dictionary=("role", "task_id", "task_type", "policy_version", "memory_entry_ids.list.element"),
)


def write_sft_rows(path: Path, rows: Iterable[SftRow]) -> int:
    """Write a Parquet file and return its number of rows. Equal rows give equal bytes.

    Raises ValueError for a row that `SftRow.validate` refuses.
    """
    return write_rows(path, _validated(rows), SFT)


def read_sft_rows(paths: Sequence[Path]) -> list[SftRow]:
    """All rows of files, in order, but for redacted ones, which say nothing. Raises StoreError for a file
    in another format."""
    return [SftRow(**row) for row in read_rows(paths, SFT) if row["completion"]]


def _validated(rows: Iterable[SftRow]) -> Iterator[Mapping[str, Any]]:
    for row in rows:
        row.validate()
        yield vars(row)


TRAINING_RECORD_VERSION = 1
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
    version=TRAINING_RECORD_VERSION,
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
    """A lazy frame over exactly these files; only the columns and row groups asked for are read."""
    return scan_files(paths, TRAINING_RECORD, path_column)
