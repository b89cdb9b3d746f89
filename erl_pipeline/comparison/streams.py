"""Streamed evaluations in a comparison: success in held-out realms by kind of note, before and after
training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from erl_pipeline.evaluation.history import StageRecord, of_stage
from erl_pipeline.evaluation.seeds import SeedSummary, across_seeds
from erl_pipeline.stages.evaluation.evaluate_stream import EVALUATE_STREAM

ATTEMPTS = {"first": "first attempt", "retry": "retry"}
NOTES = {"none": "no note", "own": "own note", "oracle": "true note", "other": "another realm's"}
"""For both: the name in the stage's metrics -> the name in tables."""
DIFFERENCES = {"own": "own - none", "other": "another's - none"}
"""The kind of note that is compared with no note -> the title of the difference."""


@dataclass(frozen=True)
class RunStreams:
    """Metrics of a run's first streamed evaluation and of its last; empty if it has none."""

    before: Mapping[str, float]
    after: Mapping[str, float]


@dataclass(frozen=True)
class StreamSummary:
    """Success of an arm's attempts in held-out realms, over its seeds. `attempt` is a key of `ATTEMPTS`.

    `success` is by the kind of note in the prompt; `less_none` has the difference to no note, seed by seed.
    """

    attempt: str
    trained: bool
    success: Mapping[str, SeedSummary]
    less_none: Mapping[str, SeedSummary]


def run_streams(history: Sequence[StageRecord]) -> RunStreams:
    """The streamed evaluations among a run's records. A single evaluation counts as the one before
    training."""
    found = [record.manifest.metrics for record in of_stage(history, EVALUATE_STREAM.name)]
    return RunStreams(found[0] if found else {}, found[-1] if len(found) > 1 else {})


def summarize(runs: Iterable[RunStreams]) -> list[StreamSummary]:
    """Summaries over the seeds of an arm. Numbers that no seed has are left out."""
    seeds = list(runs)
    summaries = []
    for attempt in ATTEMPTS:
        for trained in (False, True):
            metrics = [each.after if trained else each.before for each in seeds]
            success = {note: _over(metrics, f"{attempt}_{note}") for note in NOTES}
            less = {note: _over(metrics, f"{attempt}_{note}", f"{attempt}_none") for note in DIFFERENCES}
            if any(success.values()):
                summaries.append(StreamSummary(attempt, trained, _present(success), _present(less)))
    return summaries


def _over(seeds: Sequence[Mapping[str, float]], metric: str, less: str | None = None) -> SeedSummary | None:
    """A metric over seeds, or its difference to the metric `less`; None if no seed has it."""
    needed = {metric} if less is None else {metric, less}
    values = [each[metric] - (each[less] if less else 0.0) for each in seeds if needed <= each.keys()]
    return across_seeds(values) if values else None


def _present(found: Mapping[str, SeedSummary | None]) -> dict[str, SeedSummary]:
    return {name: each for name, each in found.items() if each is not None}
