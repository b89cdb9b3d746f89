"""`erl-pipeline replay --set`: a new run that goes its own way from a stage of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from command_line.output import counted
from command_line.replay.new_run import (
    StoredRun,
    conclude,
    own_settings,
    require_other_name,
    work_on_new_run,
)
from erl_pipeline.config.differences import changed_settings
from erl_pipeline.config.load import change_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.build import plan_branch, shared_stages
from erl_pipeline.plan.plan import Plan
from erl_pipeline.plan.sources import read_sources
from erl_pipeline.runs.branch import begin_branch
from erl_pipeline.runs.planning import plan_as_made
from storage.errors import InputError
from storage.runs.origin import BranchOrigin


@dataclass(frozen=True)
class PlannedBranch:
    """A branch before it begins: its configuration, its plan, and how many artifacts it shares."""

    config: RunConfig
    origin: BranchOrigin
    plan: Plan
    shared: int
    changed: Sequence[str]


def planned_branch(
    run: str, store: str, iteration: int, stage: str, last: int | None, settings: Sequence[str], name: str
) -> PlannedBranch:
    """Plan a branch; `last` is where it ends, by default where `run` ended.

    Raises ConfigError for settings that something before the branch was made with, InputError when `run`
    has not come that far or has no such stage, or when nothing is changed.
    """
    stored = StoredRun.open(run, store)
    if iteration < 1:
        raise InputError(
            "a branch begins in iteration 1 or later; for other tasks or another first checkpoint "
            "train a new run with `train --name`"
        )
    last = last or max(stored.done, iteration)
    if last < iteration:
        raise InputError(f"--iterations {last}: the branch begins in iteration {iteration}")
    options = {"--as": ("name", name), "--iterations": ("iterations", last)}
    config = change_config(stored.config, own_settings(settings), options)
    changed = changed_settings(stored.config, config)
    if not changed:
        raise InputError(f"run {run} has these settings already; leave out --set and --as to audit it")
    origin = BranchOrigin(run=run, iteration=iteration, stage=stage)
    source = plan_as_made(store, stored.run, iteration)
    shared = shared_stages(source, iteration, stage)
    plan = plan_branch(config, read_sources(config), source, stored.config, origin, iterations=last)
    return PlannedBranch(config, origin, plan, len(shared), changed)


def replay_branch(
    run: str,
    iteration: int,
    stage: str,
    last: int | None,
    settings: Sequence[str],
    name: str,
    store: str,
    json: bool,
) -> None:
    """Begin the branch, or continue it. Raises as `planned_branch`, and ConfigError where another run has
    the name."""
    require_other_name(run, name)
    branch = planned_branch(run, store, iteration, stage, last, settings, name)
    heading = (
        f"Branch of {run}: shares {counted(branch.shared, 'artifact')} before {stage} of iteration {iteration}"
    )
    notes = [heading, *(f"  {line}" for line in branch.changed)]
    work_on_new_run(branch.config, store, notes, partial(begin_branch, origin=branch.origin))
    conclude(name, run, store, branch.config.iterations, json)
