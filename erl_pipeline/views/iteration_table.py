"""A run iteration by iteration, as the terminal and Prefect's page show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TypeGuard

from erl_pipeline.evaluation.history import StageRecord
from erl_pipeline.pipeline.outcome import StageOutcome
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact
from storage.runs.ledger import LedgerEntry

MOST_ROWS = 50
"""Rows, at most, of a table that is shown again with each new iteration."""


@dataclass(frozen=True)
class IterationRow:
    """One iteration. Success rates are shares of attempts, and None where nothing was attempted.

    `retried` counts second attempts, `memory` the entries after the iteration, `rl_loss` is that of the
    policy update (nats), `held_out` the greedy success of first attempts on held-out tasks, and `tokens`
    those that the policy generated in rollouts.
    """

    iteration: int
    first: float | None = None
    second: float | None = None
    retried: int | None = None
    memory: int | None = None
    rl_loss: float | None = None
    sft_rows: int | None = None
    held_out: float | None = None
    tokens: int | None = None
    tokens_per_second: float | None = None
    seconds: float = 0.0


def iteration_row(iteration: int, outcomes: Iterable[StageOutcome]) -> IterationRow:
    """The row of one iteration from what its stages gave; iteration 0 is what came before the first."""
    seconds = 0.0
    shard_seconds = 0.0
    numbers: dict[str, Mapping[str, float]] = {}
    for outcome in outcomes:
        seconds += outcome.seconds
        shard_seconds += outcome.seconds if outcome.stage == "rollout_shard" else 0.0
        numbers[outcome.stage] = {**outcome.counters, **outcome.metrics}
    rollouts = numbers.get("generate_rollouts", {})
    tokens = rollouts.get("generated_tokens")
    return IterationRow(
        iteration=iteration,
        first=rollouts.get("success_first"),
        second=rollouts.get("success_second"),
        retried=_whole(rollouts.get("second_attempts")),
        memory=_whole(numbers.get("index_memory", {}).get("entries")),
        rl_loss=numbers.get("update_policy", {}).get("policy_loss"),
        sft_rows=_whole(numbers.get("build_distillation", {}).get("sft_rows")),
        held_out=numbers.get("evaluate", {}).get("greedy_success"),
        tokens=_whole(tokens),
        tokens_per_second=tokens / shard_seconds if tokens and shard_seconds else None,
        seconds=seconds,
    )


def history_rows(history: Iterable[StageRecord]) -> list[IterationRow]:
    """The rows of a run from its history; seconds are those that the artifacts took to make.

    Evaluations that somebody asked for afterwards are no part of the run's iterations.
    """
    outcomes: dict[int, list[StageOutcome]] = {}
    for record in history:
        if record.stage == "evaluate_on_request":
            continue
        manifest = record.manifest
        outcome = StageOutcome(
            stage=record.stage,
            iteration=record.iteration,
            artifact_id=manifest.artifact_id,
            reused=record.reused,
            seconds=record.seconds,
            counters=manifest.counters,
            metrics={name: number for name, number in manifest.metrics.items() if _is_number(number)},
        )
        outcomes.setdefault(record.iteration, []).append(outcome)
    return [iteration_row(iteration, outcomes[iteration]) for iteration in sorted(outcomes)]


def stored_rows(store: ArtifactStore, entries: Iterable[LedgerEntry]) -> list[IterationRow]:
    """The rows of the iterations of some ledger entries, from the manifests that are there and whole."""
    history = []
    for entry in entries:
        try:
            manifest = store.find(entry.artifact_id, entry.stage)
        except DamagedArtifact:
            manifest = None
        if manifest is not None:
            history.append(StageRecord(entry.iteration or 0, entry.stage, entry.key, entry.reused, manifest))
    return history_rows(history)


def row_cells(row: IterationRow) -> dict[str, str]:
    """A row as text, column by column; what does not apply is left blank."""
    return {HEADINGS[field.name]: _cell(field.name, getattr(row, field.name)) for field in fields(row)}


HEADINGS = {
    "iteration": "iter",
    "first": "1st",
    "second": "2nd",
    "retried": "retried",
    "memory": "memory",
    "rl_loss": "RL loss",
    "sft_rows": "SFT",
    "held_out": "held-out",
    "tokens": "tokens",
    "tokens_per_second": "tokens/s",
    "seconds": "seconds",
}

LEGEND = (
    "1st, 2nd: success of first and second attempts in training; SFT: rows distilled;\n"
    "held-out: success of greedy first attempts on tasks never trained on"
)


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name in ("first", "second", "held_out"):
        return f"{value:.3f}"
    if name == "rl_loss":
        return f"{value:+.4f}"
    return f"{value:,.1f}" if name == "seconds" else f"{value:,.0f}"


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, float | int)
