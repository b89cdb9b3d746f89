"""Trajectories: one row for each token sequence that can be trained on, in Parquet."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from storage.artifacts.recipe import digest
from storage.tables.parquet import TableFormat, read_rows, scan_files, schema_of, write_rows
from storage.tables.scored import ALL_REDACTED, with_measured

SCHEMA_VERSION = 3
_OF_TOKENS = ("prompt_token_ids", "response_token_ids", "response_mask", "behaviour_logprobs")
NO_METRICS = "{}"

GUIDED, FREE = "guided", "free"
"""Subgroups of a group that a method splits: with memory in the prompt if there is any, or without memory."""

OTHER_OPENING = "other_opening"
"""Metric of an agent's attempt, 1 where it did not begin with the messages and tools with which the agent
began the episode's first attempt, or where its first call got no answer. Its first sequence then belongs to
another prompt than that attempt's first call."""

LOGPROB_TOLERANCE = 1e-4
"""Largest log-probability that counts as rounding error of a value of at most 0."""


@dataclass(frozen=True)
class Trajectory:
    """One trainable token sequence: a prompt and what was sampled after it.

    Floats are stored in 32 bits. `response_*` and `behaviour_logprobs` have one value for each response
    token.
    """

    trajectory_id: str
    """A digest of its artifact and its place in it."""
    episode_id: str
    """The episode: the whole chain of attempts at a task that this is a part of."""
    parent_trajectory_id: str | None
    """The trajectory that led to this one, such as the failed attempt that a reflection is about."""
    iteration: int
    """The one that sampled it."""
    task_id: str
    """The task, as its environment names it."""
    task_type: str
    """Kind of task; memory is filtered by it."""
    environment: str
    """Type of the environment."""
    role: str
    """Its role in the episode; the method declares its roles."""
    revision_index: int
    """Round of revision, from 0 for the first attempt."""
    sample_index: int
    """Number of the episode among those of the same task, from 0."""
    group_id: str
    """Shared by the trajectories whose rewards are compared to compute advantages."""
    subgroup: str | None
    """Its part of a group that the method splits, such as `guided` or `free`; None for groups not split."""
    prompt_token_ids: tuple[int, ...]
    """Before the first sampled token."""
    response_token_ids: tuple[int, ...]
    """All turns, including environment and tool tokens between them."""
    response_mask: tuple[int, ...]
    """1 on tokens that the policy sampled, 0 on environment and tool tokens."""
    behaviour_logprobs: tuple[float, ...]
    """Log-probability in nats under the behaviour policy, after temperature; 0 where the mask is 0."""
    temperature: float
    """Sampling temperature."""
    policy_version: str
    """Artifact id of the checkpoint that sampled it; empty if a model without an artifact did."""
    tokenizer_digest: str
    """Of the tokenizer."""
    reward: float
    """Of a text, such as a reflection, that of the attempt that it led to. It means nothing where the
    trajectory was not scored (`storage.tables.scored`)."""
    success: bool
    """Whether the reward reached the threshold."""
    finish_reason: str
    """How it ended, or why it was not scored."""
    truncated: bool
    """Whether a limit cut it off."""
    feedback: str
    """What the environment said about this attempt, or about the attempt that a reflection is on."""
    messages: str
    """The dialogue for people to read: JSON list of `{"role", "content"}`."""
    memory_version: str
    """The memory version that was searched for its prompt; empty if none was."""
    memory_entry_ids: tuple[str, ...]
    """Entries that were in the prompt, the best first."""
    seed: int
    """The seed that sampled it."""
    task_payload: str
    """JSON of the task, so that a trajectory can be shown without its environment."""
    text: str | None = None
    """What the role's parser took from the answer; None if the answer is ill-formed or was not parsed."""
    metrics: str = NO_METRICS
    """The environment's metrics for the attempt: JSON object, name -> finite number."""
    turn_rewards: tuple[float, ...] | None = None
    """Reward of each turn of an attempt, which add up to `reward`; the tokens of a turn are a run of ones in
    `response_mask`. None for what is no attempt, an agent's attempt, and one that the environment failed."""

    def validate(self) -> None:
        """Raise ValueError, which names the trajectory, when its columns contradict each other."""
        for column, problem in contradictions(vars(self)):
            raise ValueError(f"trajectory {self.trajectory_id}: {column} {problem}")


TRAJECTORY_SCHEMA = schema_of(
    Trajectory, response_mask=pa.list_(pa.int8()), seed=pa.int64(), turn_rewards=pa.list_(pa.float32())
)
TRAJECTORIES = TableFormat(
    name="trajectories",
    version=SCHEMA_VERSION,
    schema=TRAJECTORY_SCHEMA,
    dictionary=(
        "episode_id",
        "task_id",
        "task_type",
        "environment",
        "role",
        "group_id",
        "subgroup",
        "policy_version",
        "tokenizer_digest",
        "finish_reason",
        "feedback",
        "metrics",
        "text",
        "memory_version",
        "memory_entry_ids.list.element",
        "task_payload",
    ),
    float_lists=("behaviour_logprobs.list.element",),
)


def validate_rows(rows: Iterable[Trajectory], table: pa.Table) -> None:
    """Raise ValueError as `Trajectory.validate` does for the first row that it refuses. `table` holds the
    same rows: where its columns show that there is none, which is the rule, no row is looked at."""
    if not _is_plain(table):
        for row in rows:
            row.validate()


def _is_plain(table: pa.Table) -> bool:
    """Whether no row can have `contradictions`. There may be none where this is false, such as where a
    log-probability has a rounding error."""
    lists = [table[name].combine_chunks() for name in _OF_TOKENS]
    if any(each.null_count or each.flatten().null_count for each in lists):
        return False
    _, response, *beside = (each.value_lengths() for each in lists)
    prompts, responses, mask, logprobs = (each.flatten().to_numpy() for each in lists)
    return (
        all(each.equals(response) for each in beside)
        and min(each.min(initial=0) for each in (prompts, responses, mask)) == 0
        and mask.max(initial=0) <= 1
        and logprobs.max(initial=0) == 0
        and logprobs.min(initial=0) > -math.inf
        and bool(np.isfinite(table["reward"].to_numpy()).all())
        and "" not in table["role"].unique().to_pylist()
        and table["metrics"].unique().to_pylist() in ([], [NO_METRICS])
        and table["turn_rewards"].null_count == len(table)
    )


def contradictions(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(column, problem) for the columns of a row that contradict each other or what they mean."""
    tokens = len(row["response_token_ids"])
    for name in ("response_mask", "behaviour_logprobs"):
        if len(row[name]) != tokens:
            yield name, f"has {len(row[name])} values and response_token_ids {tokens}; they must be equal"
    mask, logprobs = row["response_mask"], row["behaviour_logprobs"]
    if not {0, 1}.issuperset(mask):
        index, bit = next((index, bit) for index, bit in enumerate(mask) if bit not in (0, 1))
        yield "response_mask", f"value {index} is {bit}; allowed are 0 and 1"
    if not are_logprobs(logprobs):
        index = next(index for index, logprob in enumerate(logprobs) if not are_logprobs([logprob]))
        yield "behaviour_logprobs", f"value {index} is {logprobs[index]}; a log-probability is at most 0"
    for name in ("prompt_token_ids", "response_token_ids"):
        if min(row[name], default=0) < 0:
            yield name, "has a negative token id"
    if not row["role"]:
        yield "role", "is empty"
    if row["metrics"] != NO_METRICS and not is_metrics(row["metrics"]):
        yield "metrics", "must be a JSON object, name -> finite number"
    if not all(map(math.isfinite, row.get("turn_rewards") or ())):
        yield "turn_rewards", "has a value that is not finite"
    if not math.isfinite(row["reward"]):
        yield "reward", f"is {row['reward']}; it must be finite"


def are_logprobs(values: Sequence[float]) -> bool:
    """Whether all numbers are finite and, but for rounding errors, at most 0."""
    # A sum over numbers that are not finite is not finite, and it costs a fraction of a loop.
    finite = math.isfinite(sum(values)) or all(map(math.isfinite, values))
    return finite and max(values, default=0.0) <= LOGPROB_TOLERANCE


def is_metrics(text: str) -> bool:
    """Whether a text is a JSON object of finite numbers."""
    try:
        metrics = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(metrics, dict) and all(
        type(value) in (int, float) and math.isfinite(value) for value in metrics.values()
    )


def trajectory_id(*parts: str | int) -> str:
    """The id of a trajectory or episode: a digest of artifact id, task, sample, role and revision."""
    return digest(parts)


def write_trajectories(path: Path, rows: Iterable[Trajectory]) -> int:
    """Write a Parquet file and return its number of rows. Equal rows give equal bytes.

    Raises ValueError for a row that `Trajectory.validate` refuses.
    """
    return write_rows(path, _validated(rows), TRAJECTORIES)


def read_trajectories(paths: Sequence[Path]) -> list[Trajectory]:
    """All trajectories of files, in order; what learns from them takes those that `storage.tables.scored`
    passes. Redacted ones are left out. Raises StoreError for a file in another format."""
    rows = read_rows(paths, TRAJECTORIES)
    return [Trajectory(**row) for row in rows if row["finish_reason"] not in ALL_REDACTED]


def scan_trajectories(paths: Sequence[Path]) -> pl.LazyFrame:
    """A lazy frame over exactly these files; only the columns and row groups asked for are read. `reward` and
    `success` are null in rows that were not scored."""
    return with_measured(scan_files(paths, TRAJECTORIES))


def _validated(rows: Iterable[Trajectory]) -> Iterator[Mapping[str, Any]]:
    for row in rows:
        row.validate()
        yield vars(row)


_MESSAGES = pl.List(pl.Struct({"role": pl.String, "content": pl.String}))


def said() -> pl.Expr:
    """The policy's own turns, with a line break between them; null if the messages were pruned."""
    return _turns(pl.col("messages"))


def says(text: str) -> pl.Expr:
    """Whether the policy's own turns contain a text; upper and lower case differ."""
    # Messages whose JSON does not hold the escaped text need not be parsed.
    escaped = json.dumps(text, ensure_ascii=False)[1:-1]
    likely = pl.when(pl.col("messages").str.contains(escaped, literal=True)).then(pl.col("messages"))
    return _turns(likely).str.contains(text, literal=True).fill_null(False)


def answered(messages: pl.Expr) -> pl.Expr:
    """The assistant's turns in lists of messages, with a line break between them."""
    message = pl.element().struct
    own = pl.element().filter(message.field("role") == "assistant").struct.field("content")
    return messages.list.eval(own).list.join("\n")


def _turns(messages: pl.Expr) -> pl.Expr:
    return answered(messages.str.json_decode(_MESSAGES))
