"""A whole run: from the first checkpoint through its iterations, begun or continued."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from erl_pipeline.pipeline.branching import begin_branch
from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.iteration import IterationState, run_iteration
from erl_pipeline.pipeline.offline import train_offline
from erl_pipeline.pipeline.outcome import DirectRunner, StageRunner
from erl_pipeline.pipeline.resumption import go_over, newest_whole_iteration
from erl_pipeline.pipeline.stored_run import StoredRun
from erl_pipeline.stages.bootstrap import bootstrap
from erl_pipeline.stages.evaluate import evaluate
from erl_pipeline.stages.prepare_tasks import prepare_tasks
from erl_pipeline.views.trackers.recording import recorded_metrics
from storage.runs.origin import BranchOrigin, OfflineOrigin, read_origin


@dataclass(frozen=True)
class TrainingSummary:
    """How far a run has come; its numbers are in the ledger and the manifests."""

    run: str
    iterations: int
    state: IterationState


def train(
    context: RunContext,
    iterations: int | None = None,
    runner: StageRunner | None = None,
    check: bool = False,
) -> TrainingSummary:
    """Run all stages up to `iterations` (default: the configuration's); what is committed is reused.

    A run goes on at the newest iteration that its ledger has whole, so that a start costs the same however
    long the run is. That iteration's stages look for their artifacts and verify them; what is damaged is
    made again. With `check` those of all earlier iterations do too, as they do where a stage has changed.
    A run that was begun from another goes on from there: a branch with its first own stage, an offline run
    on the stored rollouts.

    Args:
        runner: calls the stages of the iterations that are not whole yet.
        check: look at every artifact of the run.
    """
    target = iterations or context.config.iterations
    with recorded_metrics(context):
        state = _train(context, target, runner or DirectRunner(), check)
    return TrainingSummary(context.run.name, target, state)


def _train(context: RunContext, iterations: int, runner: StageRunner, check: bool) -> IterationState:
    origin = read_origin(context.store.uri, context.run.name)
    if isinstance(origin, OfflineOrigin):
        return train_offline(context, origin, iterations, runner, check)
    whole = 0 if check else newest_whole_iteration(context, iterations)
    first_own = origin.iteration + 1 if isinstance(origin, BranchOrigin) else 1
    if whole >= first_own:
        state = go_over(context, whole, partial(_go_over, context, whole, whole == iterations, origin))
        if state is not None:
            return _go_on(context, whole + 1, iterations, state, runner)
    if isinstance(origin, BranchOrigin):
        state, runner = begin_branch(context, origin, runner)
        return _go_on(context, origin.iteration, iterations, state, runner)
    return _go_on(context, 1, iterations, _begin(context, runner), runner)


def _go_over(context: RunContext, iteration: int, last: bool, origin: BranchOrigin | None) -> IterationState:
    """The stages of an iteration that is whole, directly: there is hardly anything to do."""
    runner = DirectRunner()
    if origin is None:
        _begin(context, runner)
    stored = StoredRun(context.run, context.stages())
    return run_iteration(context, iteration, stored.state_before(iteration), runner, last)


def _go_on(
    context: RunContext, first: int, iterations: int, state: IterationState, runner: StageRunner
) -> IterationState:
    for iteration in range(first, iterations + 1):
        body = partial(run_iteration, context, iteration, state, runner, last=iteration == iterations)
        state = runner.iteration(iteration, body)
    return state


def _begin(context: RunContext, runner: StageRunner) -> IterationState:
    """What comes before the first iteration."""
    tasks = runner.call("prepare_tasks", prepare_tasks, context)
    first = runner.call("bootstrap", bootstrap, context)
    runner.call("evaluate", evaluate, context, 0, first.artifact_id, tasks.artifact_id)
    return IterationState(tasks.artifact_id, first.artifact_id, first.artifact_id, None)
