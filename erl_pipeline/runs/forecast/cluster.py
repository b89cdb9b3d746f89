"""Simulating a run on a cluster: as configured, and with changes that might make it faster."""

from __future__ import annotations

from dataclasses import dataclass

from erl_pipeline.config.loading.load import change_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.cluster import ClusterConfig, Job, jobs_of, split_parts
from erl_pipeline.plan.plan import Plan
from erl_pipeline.plan.simulation import Simulation, simulate
from erl_pipeline.plan.sources import unread_sources
from erl_pipeline.runs.forecast.lookups import StoreLookups
from erl_pipeline.runs.forecast.measured import Measurements, measure
from erl_pipeline.runs.run_plans import plan_run


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
    jobs = jobs_of(plan, cluster, measurements.of)
    variants = []
    lag = config.pipeline.lag + 1
    lagged = change_config(config, [f"pipeline.lag={lag}", "objective.correction.type=decoupled"])
    lagged_plan = _plan(lagged, iterations)
    lagged_jobs = jobs_of(lagged_plan, cluster, measure(lagged_plan, lookups).of)
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
    jobs = jobs_of(plan, cluster, measure(plan, lookups).of)
    factor = config.rollouts.shards / changed.rollouts.shards
    return f"rollouts.tasks_per_shard: {half}", split_parts(jobs, factor)
