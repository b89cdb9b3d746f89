"""Calls that agents made during their attempts, in Parquet: which tokens each has, and how long it took."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from storage.tables.parquet import TableFormat, scan_files, schema_of, write_rows


@dataclass(frozen=True)
class AgentCall:
    """One answer to a call, or why there is none. A call for several choices has a row for each.

    The milliseconds are measured, so they differ from one computation of an artifact to the next.
    """

    attempt_id: str
    """The trajectory of the attempt's first sequence."""
    call_id: str | None
    """As the agent was told; None for a call that was refused."""
    choice: int
    """Its number among the choices of the call, from 0."""
    api: str
    """`chat`, `responses` or `messages`."""
    sequence_index: int | None
    """0 for the attempt's first sequence, then its further ones in their order; None where nothing was
    sampled."""
    start: int | None
    """Place of its first token among the sequence's response tokens."""
    end: int | None
    """Place behind its last token."""
    finish: str | None
    """`stop`, `length` or `tool_calls`."""
    streamed: bool
    """Whether the client asked for a stream."""
    retry_of: str | None
    """The call whose answer was given once more, since the client said that it had not got it."""
    overridden: tuple[str, ...]
    """Fields of the request that did not count, since the run's own values do."""
    problem: str | None
    """Why it was refused, or what is wrong with a tool call in the answer."""
    arrived_ms: float
    """When it came, since the attempt began."""
    engine_ms: float
    """How long the policy took."""
    gateway_ms: float
    """How long all else took."""


AGENT_CALLS = TableFormat(
    name="agent_calls",
    version=1,
    schema=schema_of(AgentCall),
    dictionary=("attempt_id", "api", "finish", "problem"),
)


def write_agent_calls(path: Path, calls: Iterable[AgentCall]) -> int:
    """Write a file of calls, and return how many."""
    return write_rows(path, map(vars, calls), AGENT_CALLS)


def scan_agent_calls(paths: Sequence[Path]) -> pl.LazyFrame:
    """A lazy frame over the calls in these files."""
    return scan_files(paths, AGENT_CALLS)
