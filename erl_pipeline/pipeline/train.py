"""A whole run: from the first checkpoint through its iterations, begun or continued."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from erl_pipeline.metrics.recording import recorded_metrics
from erl_pipeline.pipeline.bootstrap import bootstrap
from erl_pipeline.pipeline.branching import begin_branch
from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.evaluation import evaluate
from erl_pipeline.pipeline.iteration import IterationState, run_iteration
from erl_pipeline.pipeline.offline import train_offline
from erl_pipeline.pipeline.outcome import DirectRunner, StageRunner
from erl_pipeline.pipeline.tasks import prepare_tasks
from storage.origin import BranchOrigin, OfflineOrigin, read_origin


@dataclass(frozen=True)
class TrainingSummary:
    """How far a run has come; its numbers are in the ledger and the manifests."""

    run: str
    iterations: int
    state: IterationState


def train(
    context: RunContext, iterations: int | None = None, runner: StageRunner | None = None
) -> TrainingSummary:
    """Run all stages up to `iterations` (default: the configuration's); what is committed is reused.

    Every stage looks for its own recipe first, so a run that was killed at any point continues where it
    stopped, and a damaged artifact is found and made again. A run that was begun from another goes on from
    there: a branch with its first own stage, an offline run on the stored rollouts.
    """
    with recorded_metrics(context):
        return _train(context, iterations or context.config.iterations, runner or DirectRunner())


def _train(context: RunContext, iterations: int, runner: StageRunner) -> TrainingSummary:
    origin = read_origin(context.store.uri, context.run.name)
    if isinstance(origin, OfflineOrigin):
        return TrainingSummary(
            context.run.name, iterations, train_offline(context, origin, iterations, runner)
        )
    if isinstance(origin, BranchOrigin):
        first = origin.iteration
        state, runner = begin_branch(context, origin, runner)
    else:
        first, state = 1, _begin(context, runner)
    for iteration in range(first, iterations + 1):
        body = partial(run_iteration, context, iteration, state, runner, last=iteration == iterations)
        state = runner.iteration(iteration, body)
    return TrainingSummary(context.run.name, iterations, state)


def _begin(context: RunContext, runner: StageRunner) -> IterationState:
    """What comes before the first iteration."""
    tasks = runner.call("prepare_tasks", prepare_tasks, context)
    first = runner.call("bootstrap", bootstrap, context)
    runner.call("evaluate", evaluate, context, 0, first.artifact_id, tasks.artifact_id)
    return IterationState(tasks.artifact_id, first.artifact_id, first.artifact_id, None)
