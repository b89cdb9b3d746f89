"""Two runs side by side: the stages they share, and what came of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from erl_pipeline.evaluation.history import (
    CurvePoint,
    StageRecord,
    learning_curve,
    of_stage,
    training_cost,
)
from erl_pipeline.evaluation.scores import SCORED_COLUMNS, greedy_outcomes
from erl_pipeline.evaluation.statistics import PairedDifference, paired_difference
from storage.artifacts.store import ArtifactStore
from storage.tables.trajectories import scan_trajectories

_ATTEMPTS = "evaluation.parquet"

Sharing = Literal["shared", "differs", "only A", "only B"]
"""`shared`: the same artifact id. `differs`: both have the stage and made another artifact of it."""


@dataclass(frozen=True)
class StageDifference:
    """A stage of an iteration (0 for what came before the first) in two runs, with its artifact ids.

    Of rollout shards there are several; the stage is `shared` when all are.
    """

    iteration: int
    stage: str
    sharing: Sharing
    a: tuple[str, ...]
    b: tuple[str, ...]


@dataclass(frozen=True)
class IterationResult:
    """What a run had come to after an iteration; None where it was not measured there. `first` and `second`
    are success rates in training, `generated_tokens` those of all rollouts so far."""

    first: float | None
    second: float | None
    held_out: CurvePoint | None
    generated_tokens: int


@dataclass(frozen=True)
class ResultDifference:
    """Both runs after an iteration; None for a run that was not there.

    `paired` is B minus A on the held-out tasks, where both were evaluated on the same. It is None where that
    is one shared evaluation, and where retention has pruned the attempts.
    """

    iteration: int
    a: IterationResult | None
    b: IterationResult | None
    paired: PairedDifference | None


def stage_differences(a: Sequence[StageRecord], b: Sequence[StageRecord]) -> list[StageDifference]:
    """Every stage of both runs, by iteration and in the order they were run."""
    ours, theirs = _ids(a), _ids(b)
    places = sorted(ours | theirs, key=lambda place: place[0])
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


def result_differences(
    store: ArtifactStore, a: Sequence[StageRecord], b: Sequence[StageRecord]
) -> list[ResultDifference]:
    """Results of both runs for each iteration that either has been through.

    Raises DamagedArtifact when the attempts of an evaluation no longer hold the bytes of their manifest.
    """
    ours, theirs = _results(a), _results(b)
    evaluations = [{record.iteration: record for record in of_stage(run, "evaluate")} for run in (a, b)]
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
        if record.stage != "evaluate_on_request":
            place = record.iteration, record.stage
            ids[place] = (*ids.get(place, ()), record.manifest.artifact_id)
    return ids


def _sharing(a: tuple[str, ...], b: tuple[str, ...]) -> Sharing:
    if not a or not b:
        return "only A" if a else "only B"
    return "shared" if set(a) == set(b) else "differs"


def _results(history: Sequence[StageRecord]) -> Mapping[int, IterationResult]:
    curve = {point.iteration: point for point in learning_curve(history)}
    rollouts = {record.iteration: record for record in of_stage(history, "generate_rollouts")}
    iterations = {record.iteration for record in history if record.stage != "evaluate_on_request"}
    results = {}
    for iteration in sorted(iterations):
        made = rollouts.get(iteration)
        results[iteration] = IterationResult(
            first=made.number("success_first") if made else None,
            second=made.number("success_second") if made else None,
            held_out=curve.get(iteration),
            generated_tokens=int(training_cost(history, "generated_tokens", iteration)),
        )
    return results


def _paired(store: ArtifactStore, a: StageRecord | None, b: StageRecord | None) -> PairedDifference | None:
    if a is None or b is None or a.manifest.artifact_id == b.manifest.artifact_id:
        return None
    before, after = (_outcomes(store, record) for record in (a, b))
    return paired_difference(before, after) if before and before.keys() == after.keys() else None


def _outcomes(store: ArtifactStore, record: StageRecord) -> dict[str, bool]:
    artifact = store.open(record.manifest.artifact_id)
    if artifact.pruned.of(_ATTEMPTS) is not None:
        return {}
    rows = scan_trajectories([artifact.path(_ATTEMPTS)])
    return greedy_outcomes(rows.select(SCORED_COLUMNS).collect())
