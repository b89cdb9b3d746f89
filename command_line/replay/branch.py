"""`erl-pipeline replay --set`: begins a new run, with other settings, at a stage of another run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from command_line.replay.new_run import conclude, work_on_new_run
from command_line.replay.planned_branch import planned_branch
from command_line.replay.stored import require_other_name
from erl_pipeline.runs.branch import begin_branch


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
    """Begin the branch, or continue it. Raises what `planned_branch` raises, and ConfigError if another run
    has the name."""
    require_other_name(run, name)
    branch = planned_branch(run, store, iteration, stage, last, settings, name)
    heading = f"Branch of {run}: shares {branch.describe_shared()}"
    notes = [heading, *(f"  {line}" for line in branch.changed)]
    work_on_new_run(branch.config, store, notes, partial(begin_branch, origin=branch.origin))
    conclude(name, run, store, branch.config.iterations, json)
