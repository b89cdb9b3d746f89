"""Simulating a run on a cluster from what stages took in earlier runs: as configured, and with changes that
might make it faster."""

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from erl_pipeline.config.loading import change_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.cluster import ClusterConfig, Job, jobs_of, split_parts, work_of
from erl_pipeline.plan.forecast import Cost
from erl_pipeline.plan.plan import Plan, PlannedStage
from erl_pipeline.plan.simulation import Simulation, simulate
from erl_pipeline.plan.sources import unread_sources
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.runs.store_lookups import StoreLookups, artifact_size
from storage.artifacts.manifest import Manifest


@dataclass(frozen=True)
class Measurements:
    """What was found. `of` maps artifact ids of the plan to what a similar artifact took.

    `runs` counts, for each run, the artifacts measured at the same place of that run. `medians` counts those
    that are the median of the newest artifacts of their stage. `overhead_seconds` is what a stage takes
    besides its own time.
    """

    of: Mapping[str, Cost]
    runs: Mapping[str, int]
    medians: int
    overhead_seconds: float


def measure(plan: Plan, lookups: StoreLookups) -> Measurements:
    """What the runs that train the same model tell of the stages of a plan.

    Each is taken from the same place of the first of these runs that computed it; these seconds are the
    driver's, from asking for a stage to having its artifact. Otherwise it is the median of its stage.
    """
    found: dict[str, Cost] = {}
    runs: Counter[str] = Counter()
    medians = 0
    typical: dict[str, Cost] = {}
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


def _at_place(node: PlannedStage, lookups: StoreLookups) -> tuple[str, Cost | None]:
    for run in lookups.alike():
        entry = lookups.ledger(run).computed.get(node.place)
        manifest = None if entry is None else lookups.manifest(entry.artifact_id, entry.stage)
        if entry is not None and manifest is not None:
            size = artifact_size(manifest).bytes
            return run, Cost(entry.seconds, _tokens(node, manifest), size)
    return "", None


def _median(node: PlannedStage, lookups: StoreLookups) -> Cost:
    _, manifests = lookups.measured(node.stage.name)
    tokens = [each for manifest in manifests if (each := _tokens(node, manifest)) is not None]
    return replace(lookups.cost(node.stage.name), tokens=statistics.median(tokens) if tokens else None)


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


@dataclass(frozen=True)
class Variant:
    """A change of the configuration or of the cluster, and the makespan with it."""

    change: str
    makespan: float


@dataclass(frozen=True)
class ClusterForecast:
    """A simulation, the measurements that it uses, and the variants that were simulated too."""

    simulation: Simulation
    measurements: Measurements
    variants: tuple[Variant, ...]
    iterations: int


def forecast_on_cluster(
    config: RunConfig, cluster: ClusterConfig, store_uri: str, iterations: int | None = None
) -> ClusterForecast:
    """Simulate a whole run, even if some of it is committed already.

    Raises ConfigError if no node of the cluster can compute a stage, or if it is not known how long a stage
    takes.
    """
    lookups = StoreLookups(store_uri, config.model_dump(mode="json"))
    plan = _plan(config, iterations)
    measurements = measure(plan, lookups)
    overhead = measurements.overhead_seconds
    jobs = jobs_of(plan, cluster, measurements.of, config.retention.optimizer_every)
    variants = []
    lag = config.pipeline.lag + 1
    lagged = change_config(config, [f"pipeline.lag={lag}", "objective.correction.type=decoupled"])
    lagged_plan = _plan(lagged, iterations)
    every = config.retention.optimizer_every
    lagged_jobs = jobs_of(lagged_plan, cluster, measure(lagged_plan, lookups).of, every)
    variants.append(Variant(f"pipeline.lag: {lag}", simulate(lagged_jobs, cluster, overhead).makespan))
    smaller = _with_smaller_shards(config, cluster, lookups, iterations)
    if smaller is not None:
        change, shards = smaller
        variants.append(Variant(change, simulate(shards, cluster, overhead).makespan))
    for name, group in cluster.nodes.items():
        more = cluster.model_copy(
            update={"nodes": {**cluster.nodes, name: group.model_copy(update={"count": group.count + 1})}}
        )
        change = f"nodes.{name}.count: {group.count + 1}"
        variants.append(Variant(change, simulate(jobs, more, overhead).makespan))
    found = simulate(jobs, cluster, overhead)
    return ClusterForecast(found, measurements, tuple(variants), plan.iterations)


def _plan(config: RunConfig, iterations: int | None) -> Plan:
    # Sources are not needed: measurements are found by place, not by artifact id.
    return plan_run(config, unread_sources(config), iterations=iterations)


def _with_smaller_shards(
    config: RunConfig, cluster: ClusterConfig, lookups: StoreLookups, iterations: int | None
) -> tuple[str, list[Job]] | None:
    """The changed setting and the jobs with shards half as large; None if a shard has one task."""
    tasks = config.rollouts.tasks_per_shard
    if tasks == 1:
        return None
    half = -(-min(tasks, config.rollouts.tasks_per_iteration) // 2)
    changed = change_config(config, [f"rollouts.tasks_per_shard={half}"])
    plan = _plan(changed, iterations)
    jobs = jobs_of(plan, cluster, measure(plan, lookups).of, config.retention.optimizer_every)
    factor = config.rollouts.shards / changed.rollouts.shards
    return f"rollouts.tasks_per_shard: {half}", split_parts(jobs, factor)
