"""A run iteration by iteration: the values of its method's columns, alone and beside those of another run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from erl_pipeline.evaluation.history import (
    StageRecord,
    held_out_evaluations,
    paired_outcomes,
    stage_order,
    stored_records,
)
from erl_pipeline.plan.column import Column
from erl_pipeline.statistics import PairedDifference
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


Sharing = Literal["shared", "differs", "only A", "only B"]
"""`shared`: the same artifact id. `differs`: both have the stage, with different artifacts."""


@dataclass(frozen=True)
class StageDifference:
    """A stage of an iteration (0 for what came before the first) in two runs, with its artifact ids.

    A stage with shards has several ids; it is `shared` if all of them are.
    """

    iteration: int
    stage: str
    sharing: Sharing
    a: tuple[str, ...]
    b: tuple[str, ...]


@dataclass(frozen=True)
class Measurement:
    """A number of a run, with the ends of its 95 % interval if it has one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class ResultDifference:
    """The numbers of both runs after an iteration, by the names of columns; None for a run that does not have
    the iteration.

    Columns that add up have their sums so far. `paired` is B minus A on the held-out tasks, if both were
    evaluated on the same tasks. It is None if they share one evaluation, or if retention has removed the
    attempts.
    """

    iteration: int
    a: Mapping[str, Measurement] | None
    b: Mapping[str, Measurement] | None
    paired: PairedDifference | None


def stage_differences(a: Sequence[StageRecord], b: Sequence[StageRecord]) -> list[StageDifference]:
    """Every stage of both runs, by iteration and in the order in which iterations run them."""
    ours, theirs = _ids(a), _ids(b)
    order = {stage: place for place, stage in enumerate(common_order(stage_order(a), stage_order(b)))}
    places = sorted(ours.keys() | theirs.keys(), key=lambda place: (place[0], order[place[1]]))
    return [
        StageDifference(
            iteration=place[0],
            stage=place[1],
            sharing=_sharing(ours.get(place, ()), theirs.get(place, ())),
            a=ours.get(place, ()),
            b=theirs.get(place, ()),
        )
        for place in places
    ]


def common_order(a: Sequence[str], b: Sequence[str]) -> list[str]:
    """The names of both lists: those of `a` in order; each other name of `b` after its predecessor in `b`."""
    merged = list(a)
    for place, name in enumerate(b):
        if name not in merged:
            merged.insert(merged.index(b[place - 1]) + 1 if place else 0, name)
    return merged


def common_columns(a: Sequence[Column], b: Sequence[Column]) -> list[Column]:
    """The columns of two methods that comparisons of runs show."""
    known = {column.name: column for column in (*b, *a) if column.compare}
    names = common_order([each.name for each in a if each.compare], [each.name for each in b if each.compare])
    return [known[name] for name in names]


def result_differences(
    store: ArtifactStore, a: Sequence[StageRecord], b: Sequence[StageRecord], columns: Sequence[Column]
) -> list[ResultDifference]:
    """The results of both runs for each iteration that one of them has.

    Raises DamagedArtifact if the attempts of an evaluation are damaged.
    """
    ours, theirs = _results(a, columns), _results(b, columns)
    evaluations = [{record.iteration: record for record in held_out_evaluations(run)} for run in (a, b)]
    return [
        ResultDifference(
            iteration=iteration,
            a=ours.get(iteration),
            b=theirs.get(iteration),
            paired=_paired(store, *(of_run.get(iteration) for of_run in evaluations)),
        )
        for iteration in sorted(ours.keys() | theirs.keys())
    ]


def _ids(history: Sequence[StageRecord]) -> dict[tuple[int, str], tuple[str, ...]]:
    ids: dict[tuple[int, str], tuple[str, ...]] = {}
    for record in history:
        if not record.on_request:
            place = record.iteration, record.stage
            ids[place] = (*ids.get(place, ()), record.manifest.artifact_id)
    return ids


def _sharing(a: tuple[str, ...], b: tuple[str, ...]) -> Sharing:
    if not a or not b:
        return "only A" if a else "only B"
    return "shared" if set(a) == set(b) else "differs"


def _results(
    history: Sequence[StageRecord], columns: Sequence[Column]
) -> dict[int, Mapping[str, Measurement]]:
    found: dict[int, dict[str, Measurement]] = {
        record.iteration: {} for record in history if not record.on_request
    }
    for column in columns:
        values = {record.iteration: record for record in history if record.value(column) is not None}
        so_far = 0.0
        for iteration in sorted(found):
            record = values.get(iteration)
            value = None if record is None else record.value(column)
            if column.adds_up:
                so_far += value or 0.0
                found[iteration][column.name] = Measurement(so_far)
            elif record is not None and value is not None:
                ends = [record.number(f"{column.metric}_{end}") for end in ("low", "high")]
                found[iteration][column.name] = Measurement(value, *(ends if column.interval else ()))
    return {iteration: found[iteration] for iteration in sorted(found)}


def _paired(store: ArtifactStore, a: StageRecord | None, b: StageRecord | None) -> PairedDifference | None:
    if a is None or b is None or a.manifest.artifact_id == b.manifest.artifact_id:
        return None
    return paired_outcomes(store, a.manifest.artifact_id, b.manifest.artifact_id)
