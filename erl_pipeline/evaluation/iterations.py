"""A run iteration by iteration: the values of its method's columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from erl_pipeline.evaluation.history import StageRecord, stored_records
from erl_pipeline.plan.column import Column
from storage.artifacts.recipe import ArtifactKind
from storage.artifacts.store import ArtifactStore
from storage.runs.ledger import LedgerEntry


class StageNumbers(Protocol):
    """The numbers of a stage; `erl_pipeline.plan.stage.StageOutcome` and `StageRecord` have them."""

    @property
    def stage(self) -> str: ...
    @property
    def kind(self) -> ArtifactKind: ...
    @property
    def key(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def counters(self) -> Mapping[str, float]: ...
    @property
    def metrics(self) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class IterationRow:
    """One iteration; 0 is what came before the first. `values` are by the names of columns; columns without a
    value are left out. Seconds are those of all its stages."""

    iteration: int
    values: Mapping[str, float]
    seconds: float = 0.0

    def plain(self, columns: Sequence[Column]) -> dict[str, float | None]:
        """The row for programs: every column by its name, None if it has no value."""
        values = {column.name: self.values.get(column.name) for column in columns if column.in_tables}
        return {"iteration": self.iteration, **values, "seconds": self.seconds}


def shown_value(column: Column, numbers: Mapping[str, float]) -> float | None:
    """The number of a column among those of its stage; None if it is missing or would have no meaning."""
    if column.only_with and not numbers.get(column.only_with):
        return None
    return numbers.get(column.metric)


def iteration_row(iteration: int, stages: Iterable[StageNumbers], columns: Sequence[Column]) -> IterationRow:
    """The row of one iteration, from the numbers of its stages.

    Rollouts also get a rate, `tokens_per_second`, computed from the time that their shards took.
    """
    given = list(stages)
    part_seconds = sum(stage.seconds for stage in given if stage.kind == "trajectories" and stage.key)
    values: dict[str, float] = {}
    for stage in given:
        numbers = {**stage.counters, **stage.metrics}
        if stage.kind == "rollouts" and part_seconds and numbers.get("generated_tokens"):
            numbers["tokens_per_second"] = numbers["generated_tokens"] / part_seconds
        for column in columns:
            value = shown_value(column, numbers) if column.stage == stage.stage else None
            if value is not None:
                values[column.name] = value
    return IterationRow(iteration, values, sum(stage.seconds for stage in given))


def history_rows(history: Iterable[StageRecord], columns: Sequence[Column]) -> list[IterationRow]:
    """The rows of a run from its history; seconds are the time for making the artifacts.

    Evaluations on request are not part of the run's iterations.
    """
    by_iteration: dict[int, list[StageRecord]] = {}
    for record in history:
        if not record.on_request:
            by_iteration.setdefault(record.iteration, []).append(record)
    return [iteration_row(iteration, by_iteration[iteration], columns) for iteration in sorted(by_iteration)]


def stored_rows(
    store: ArtifactStore, entries: Iterable[LedgerEntry], columns: Sequence[Column]
) -> list[IterationRow]:
    """The rows of the iterations of some ledger entries; missing and damaged manifests are left out."""
    return history_rows(stored_records(store, entries), columns)
