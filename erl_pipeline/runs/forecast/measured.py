"""What stages took in earlier runs, place by place, for the simulation of a plan."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from erl_pipeline.plan.cluster import Measured, work_of
from erl_pipeline.plan.plan import Plan, PlannedStage
from erl_pipeline.runs.forecast.lookups import StoreLookups, artifact_size
from storage.artifacts.manifest import Manifest


@dataclass(frozen=True)
class Measurements:
    """What was found. `of` maps artifact ids of the plan to what a similar artifact took.

    `runs` counts, for each run, the artifacts measured at the same place of that run. `medians` counts those
    that are the median of the newest artifacts of their stage. `overhead_seconds` is what a stage takes
    besides its own time.
    """

    of: Mapping[str, Measured]
    runs: Mapping[str, int]
    medians: int
    overhead_seconds: float


def measure(plan: Plan, lookups: StoreLookups) -> Measurements:
    """What the runs that train the same model tell of the stages of a plan.

    Each is taken from the same place of the first of these runs that computed it; these seconds are the
    driver's, from asking for a stage to having its artifact. Otherwise it is the median of its stage.
    """
    found: dict[str, Measured] = {}
    runs: Counter[str] = Counter()
    medians = 0
    typical: dict[str, Measured] = {}
    for node in plan.nodes:
        run, taken = _at_place(node, lookups)
        if taken is not None:
            runs[run] += 1
        else:
            name = node.stage.name
            if name not in typical:
                typical[name] = _median(node, lookups)
            taken = typical[name]
            medians += taken.seconds is not None
        found[node.artifact_id] = taken
    return Measurements(found, runs, medians, _overhead(lookups))


def _at_place(node: PlannedStage, lookups: StoreLookups) -> tuple[str, Measured | None]:
    for run in lookups.alike():
        entry = lookups.ledger(run).computed.get(node.place)
        manifest = None if entry is None else lookups.manifest(entry.artifact_id, entry.stage)
        if entry is not None and manifest is not None:
            size = artifact_size(manifest).bytes
            return run, Measured(entry.seconds, _tokens(node, manifest), size)
    return "", None


def _median(node: PlannedStage, lookups: StoreLookups) -> Measured:
    _, manifests = lookups.measured(node.stage.name)
    if not manifests:
        return Measured()
    tokens = [each for manifest in manifests if (each := _tokens(node, manifest)) is not None]
    return Measured(
        statistics.median((each.finished_at - each.started_at).total_seconds() for each in manifests),
        statistics.median(tokens) if tokens else None,
        statistics.median(artifact_size(each).bytes for each in manifests),
    )


def _tokens(node: PlannedStage, manifest: Manifest) -> float | None:
    """Tokens that a stage generated, or that its model read in training."""
    counters = manifest.counters
    work = work_of(node)
    if work == "generation":
        return counters.get("generated_tokens")
    if work == "training":
        return counters.get("input_tokens", counters.get("trained_tokens"))
    return None


def _overhead(lookups: StoreLookups) -> float:
    """The median time between two entries of the nearest run's ledger, less the second stage's own time; 0 if
    its stages overlapped."""
    for run in lookups.nearest:
        computed = list(lookups.ledger(run).computed.values())
        between = [
            (later.recorded_at - earlier.recorded_at).total_seconds() - later.seconds
            for earlier, later in pairwise(sorted(computed, key=lambda entry: entry.recorded_at))
        ]
        if between:
            return max(0.0, statistics.median(between))
    return 0.0
