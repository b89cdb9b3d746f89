"""Makes the plan that is shown: for a configuration, for continuing a run, or for a run from a stage on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from command_line.stored_run import StoredRun, planned_branch
from erl_pipeline.config.loading import change_config, load_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.forecast import Forecast, forecast
from erl_pipeline.plan.plan import Plan, StageKey
from erl_pipeline.plan.repetition import without_state
from erl_pipeline.plan.sources import read_sources
from erl_pipeline.runs.config import is_blank, refuse_other_settings, run_config
from erl_pipeline.runs.disk import DiskForecast, expected_sizes, forecast_disk
from erl_pipeline.runs.environment_checks import require_tasks_of
from erl_pipeline.runs.planning import plan_as_made, plan_for
from erl_pipeline.runs.run_plans import plan_run, shared_stages
from erl_pipeline.runs.store_lookups import StoreLookups
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError
from storage.filesystem import free_bytes, open_root
from storage.runs.run import Run, RunStore


@dataclass(frozen=True)
class MeasuredRun:
    """A run by which it is known what stages take."""

    run: str
    stages: tuple[str, ...]
    alike: tuple[str, ...]
    """Which of policy, environment and trainer are those of the planned configuration; its model always is
    the same."""


@dataclass(frozen=True)
class ShownPlan:
    """A plan with its forecasts, and the texts that are shown with it (`what` above, `notes` below)."""

    run: str
    store: str
    iterations: int
    what: str
    forecast: Forecast
    disk: DiskForecast
    free: int | None
    """Free bytes for the store; None if they are not known."""
    measured: tuple[MeasuredRun, ...]
    """By which runs the expected times and sizes are known."""
    notes: tuple[str, ...] = ()
    refusal: str = ""
    """Why `train` would not continue the run with these settings; empty if it would."""


def plan_of_config(config: RunConfig, store: str, iterations: int | None) -> ShownPlan:
    """What `train` would do with a configuration."""
    target = iterations or config.iterations
    runs = RunStore(store)
    refusal = ""
    if config.name in runs.list():
        run = runs.open(config.name)
        plan = plan_for(store, run, config, target)
        refusal = "" if is_blank(store, run) else _refusal(run, config)
    else:
        plan = plan_run(config, read_sources(config), iterations=target)
    require_tasks_of(plan, config, ArtifactStore(store))
    return replace(_shown(config, store, plan, f"Run {config.name} in {store}"), refusal=refusal)


def plan_of_run(name: str, store: str, iterations: int | None, settings: Sequence[str]) -> ShownPlan:
    """What continuing a run would do, with its configuration or a changed one."""
    run = RunStore(store).open(name)
    config = run_config(run)
    if settings:
        config = change_config(config, settings)
    return plan_of_config(config, store, iterations)


def plan_from_stage(
    name: str, store: str, iterations: int | None, settings: Sequence[str], iteration: int, stage: str
) -> ShownPlan:
    """What `replay` would compute from a stage of an iteration on: a branch if settings change, else the
    stages that an audit computes again."""
    if not settings:
        stored = StoredRun.open(name, store)
        last = stored.last_of_span(iteration, iterations)
        plan = plan_as_made(store, stored.run, last)
        kept = {node.place for node in shared_stages(plan, iteration, stage)}
        again = frozenset(node.place for node in plan.nodes if node.place not in kept)
        what = f"Audit of {name} in {store}, from {stage} of iteration {iteration}"
        return _shown(stored.config, store, plan, what, again=again)
    branch = planned_branch(name, store, iteration, stage, iterations, settings, name)
    what = f"Branch of {name} in {store}, from {stage} of iteration {iteration}: {'; '.join(branch.changed)}"
    return _shown(branch.config, store, branch.plan, what)


def is_config(given: str) -> bool:
    """Whether an argument names a configuration file rather than a run."""
    return given.endswith((".yaml", ".yml")) or Path(given).is_file()


def read_config(path: str, settings: Sequence[str]) -> RunConfig:
    """The configuration of a file, with overrides."""
    return load_config(Path(path), settings)


def _shown(
    config: RunConfig, store: str, plan: Plan, what: str, again: frozenset[StageKey] = frozenset()
) -> ShownPlan:
    lookups = StoreLookups(store, config.model_dump(mode="json"))
    found = forecast(plan, lookups, again)
    computed = [stage.node for stage in found.computed]
    sizes = expected_sizes(config, computed, lookups)
    notes = _compared(found, config.name)
    lacking = without_state(plan, config.retention.optimizer_every)
    free = free_bytes(open_root(store))
    disk = forecast_disk(computed, sizes, config.retention.rules(), config.pipeline.lag, free, lacking)
    measured = _measured(found, lookups)
    return ShownPlan(config.name, store, plan.iterations, what, found, disk, free, measured, notes)


def _measured(found: Forecast, lookups: StoreLookups) -> tuple[MeasuredRun, ...]:
    runs: dict[str, list[str]] = {}
    for stage in dict.fromkeys(each.node.stage.name for each in found.computed):
        run, _ = lookups.measured(stage)
        if run:
            runs.setdefault(run, []).append(stage)
    return tuple(MeasuredRun(run, tuple(stages), lookups.groups_alike(run)) for run, stages in runs.items())


def _compared(found: Forecast, own: str) -> tuple[str, ...]:
    """Which other run the reasons are about; empty if they are about the run itself, or if all is new."""
    others = dict.fromkeys(stage.compared for stage in found.computed if stage.compared not in ("", own))
    return tuple(
        f"Reasons: compared with run {name}, whose settings differ least from these." for name in others
    )


def _refusal(run: Run, config: RunConfig) -> str:
    try:
        refuse_other_settings(run, config)
    except ConfigError as error:
        return str(error)
    return ""
