"""A whole run: from the first checkpoint through its iterations, begun or continued."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from erl_pipeline.pipeline.bootstrap import bootstrap
from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.evaluation import evaluate
from erl_pipeline.pipeline.iteration import IterationState, run_iteration
from erl_pipeline.pipeline.outcome import DirectRunner, StageRunner
from erl_pipeline.pipeline.tasks import prepare_tasks


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
    stopped, and a damaged artifact is found and made again.
    """
    runner = runner or DirectRunner()
    iterations = iterations or context.config.iterations
    tasks = runner.call("prepare_tasks", prepare_tasks, context)
    first = runner.call("bootstrap", bootstrap, context)
    state = IterationState(tasks.artifact_id, first.artifact_id, first.artifact_id, None)
    runner.call("evaluate", evaluate, context, 0, state.checkpoint_id, state.tasks_id)
    for iteration in range(1, iterations + 1):
        body = partial(run_iteration, context, iteration, state, runner, last=iteration == iterations)
        state = runner.iteration(iteration, body)
    return TrainingSummary(context.run.name, iterations, state)
