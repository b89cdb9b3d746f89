"""`erl-pipeline replay --set`: a new run that goes its own way from a stage of another."""

from __future__ import annotations

import json as json_format
from collections.abc import Sequence

from command_line.replay.new_run import (
    conclude,
    own_settings,
    require_other_name,
    require_stage,
    stored_run,
    work_on_new_run,
)
from erl_pipeline.config.differences import changed_settings
from erl_pipeline.config.load import change_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.pipeline.iteration import STAGES
from erl_pipeline.pipeline.planning import refuse_earlier_changes
from erl_pipeline.pipeline.run_state import run_config
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.runs.origin import BranchOrigin


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
    """Begin the branch, or continue it: `last` is where it ends, by default where `run` ended.

    Raises ConfigError for settings that something before the branch was made with, or of another branch
    of that name, InputError when `run` has not come that far.
    """
    stored = stored_run(run, store)
    old = run_config(stored.run)
    if iteration < 1:
        raise InputError(
            "a branch begins in iteration 1 or later; for other tasks or another first checkpoint "
            "train a new run with `train --name`"
        )
    require_stage(iteration, stage)
    require_other_name(run, name)
    last = last or max(stored.last_iteration, iteration)
    if last < iteration:
        raise InputError(f"--iterations {last}: the branch begins in iteration {iteration}")
    naming = [f"name={json_format.dumps(name)}", f"iterations={last}"]
    new = change_config(old, [*own_settings(settings), *naming])
    changed = changed_settings(old, new)
    if not changed:
        raise InputError(f"run {run} has these settings already; leave out --set to audit it")
    for entry_stage in _needed(old, stage):
        stored.entry(iteration, entry_stage)
    artifacts = ArtifactStore(store)
    refuse_earlier_changes(old, new, artifacts, stored, iteration, stage)
    origin = BranchOrigin(run=run, iteration=iteration, stage=stage)
    shared = len(stored.before(iteration, stage))
    heading = f"Branch of {run}: shares {shared} artifacts before {stage} of iteration {iteration}"
    work_on_new_run(new, store, origin, last, [heading, *(f"  {line}" for line in changed)])
    conclude(new.name, run, store, last, json)


def _needed(config: RunConfig, stage: str) -> list[str]:
    """Stages of an iteration that must be stored for a branch at `stage`."""
    left_out = set()
    if config.memory is None:
        left_out.add("index_memory")
    if config.distillation is None:
        left_out |= {"build_distillation", "fine_tune"}
    return [each for each in STAGES[: STAGES.index(stage)] if each not in left_out]
