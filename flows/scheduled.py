"""The flows of the deployments: training, one more iteration, evaluation, maintenance.

A worker runs each flow run in a process of its own. What is heavy is imported only there.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.scheduled_run import Overlap, ScheduledRun, conclude, work_on_run
from storage.errors import InputError, RunBusy

if TYPE_CHECKING:
    from erl_pipeline.pipeline.context import RunContext

# One thread: the embedded engine is one policy in this process.
_ONE_THREAD: Any = ThreadPoolTaskRunner(max_workers=1)


@flow(name="train", flow_run_name="{run}", task_runner=_ONE_THREAD)
def train(
    run: str,
    store: str,
    iterations: int | None = None,
    config: str | None = None,
    overlap: Overlap = "skip",
    concurrency_limit: str | None = "gpu",
) -> State[None]:
    """Train a run to a number of iterations; what is committed is reused, and nothing is done beyond it.

    Args:
        run: name of the run in the store.
        store: a folder or URI.
        iterations: where to end; default: the configuration's.
        config: a configuration file to begin the run with when the store does not have it.
        overlap: what to do when another process works on the run.
        concurrency_limit: a global concurrency limit of which a slot is held; null for none.
    """
    request = ScheduledRun("train", run, store, config, overlap, concurrency_limit)
    return work_on_run(request, lambda context: _train(context, iterations or context.config.iterations))


@flow(name="one-iteration", flow_run_name="{run}", task_runner=_ONE_THREAD)
def iteration(
    run: str,
    store: str,
    config: str | None = None,
    overlap: Overlap = "skip",
    concurrency_limit: str | None = "gpu",
) -> State[None]:
    """Train a run for one more iteration than it has. For the arguments see `train`."""
    from erl_pipeline.pipeline.run_state import completed_iterations

    def one_more(context: RunContext) -> str:
        return _train(context, completed_iterations(context.config, context.recorded()) + 1)

    return work_on_run(ScheduledRun("iteration", run, store, config, overlap, concurrency_limit), one_more)


@flow(name="evaluate", flow_run_name="{run}", task_runner=_ONE_THREAD)
def evaluate(
    run: str,
    store: str,
    tasks: int | None = None,
    samples: int = 4,
    overlap: Overlap = "skip",
    concurrency_limit: str | None = "gpu",
) -> State[None]:
    """Evaluate the last checkpoint of a run on generated held-out tasks. For other arguments see `train`.

    Args:
        tasks: how many; default: as many as in training.
        samples: sampled attempts of each task beside the greedy one.
    """
    request = ScheduledRun("evaluate", run, store, None, overlap, concurrency_limit)
    return work_on_run(request, lambda context: _evaluate(context, tasks, samples))


@flow(name="maintain", flow_run_name="{run}")
def maintain(run: str, store: str, garbage_days: float | None = None) -> State[None]:
    """Check a whole run: files against manifests, rows against rows, memory against artifacts.

    The flow run fails, and names what is wrong, when something is. It needs no device and no lock.

    Args:
        garbage_days: when all is whole, remove from the store what no run reaches and is older than so many
            days; null removes nothing.
    """
    request = ScheduledRun("maintain", run, store, None, "skip", None)
    return conclude(request, lambda _stop, logger, _link: _maintain(request, garbage_days, logger.error))


def _train(context: RunContext, iterations: int) -> str:
    from erl_pipeline.pipeline.run_state import whole_iterations
    from erl_pipeline.pipeline.train import train as train_run
    from flows.runner import PrefectRunner

    done = whole_iterations(context.config, context.recorded())
    if done >= iterations and _evaluated(context, iterations):
        return f"Nothing to do: committed through iteration {done}"
    runner = PrefectRunner(context, first_flow=done + 1)
    train_run(context, iterations, runner)
    runner.publish_summary()
    return f"Committed through iteration {iterations}"


def _evaluated(context: RunContext, iteration: int) -> bool:
    return any(entry.stage == "evaluate" and entry.iteration == iteration for entry in context.recorded())


def _evaluate(context: RunContext, tasks: int | None, samples: int) -> str:
    from erl_pipeline.environments.frozen_lake import ENVIRONMENT
    from erl_pipeline.pipeline.run_state import latest_checkpoint
    from erl_pipeline.stages.evaluate import EVALUATE_ON_REQUEST, evaluate_tasks
    from flows.runner import PrefectRunner

    config = context.config
    checkpoint = latest_checkpoint(context.stages())
    if checkpoint is None:
        raise InputError(f"run {context.run.name} has no checkpoint yet; train it first")
    count = tasks or config.evaluation.tasks
    chosen = ENVIRONMENT.held_out_tasks(config.environment, config.seed, count)
    settings = config.evaluation.model_copy(update={"samples_per_task": samples})
    context.config = config.model_copy(update={"evaluation": settings})
    outcome = PrefectRunner(context).call(
        EVALUATE_ON_REQUEST,
        evaluate_tasks,
        context,
        checkpoint.iteration or 0,
        checkpoint.artifact_id,
        chosen,
        {"checkpoint": checkpoint.artifact_id},
        EVALUATE_ON_REQUEST,
    )
    return (
        f"Checkpoint {checkpoint.artifact_id[:12]} (iteration {checkpoint.iteration or 0}): greedy success "
        f"{outcome.metrics['greedy_success']:.3f} on {len(chosen)} held-out tasks"
    )


def _maintain(request: ScheduledRun, garbage_days: float | None, tell: Callable[[str], None]) -> State[None]:
    from storage.artifacts.store import ArtifactStore
    from storage.runs.run import RunStore
    from storage.upkeep.verification import verify_run

    report = verify_run(ArtifactStore(request.store), RunStore(request.store).open(request.run))
    for problem in report.problems:
        tell(problem)
    checked = f"{report.artifacts} artifacts, {report.files} files, {report.bytes / 1e6:,.1f} MB"
    if report.problems:
        return Failed(
            message=f"{len(report.problems)} problems in {checked}, the first: {report.problems[0]}. Make "
            "damaged artifacts again with: erl-pipeline train CONFIG --check"
        )
    collected = "" if garbage_days is None else f". {_collect(request.store, garbage_days)}"
    return Completed(message=f"All is whole: {checked}{collected}")


def _collect(store: str, days: float) -> str:
    from storage.upkeep.collection import collect

    try:
        removed = collect(store, timedelta(days=days))
    except RunBusy as busy:
        return f"No garbage was removed: {busy}"
    count = len(removed.unreached) + len(removed.leftovers)
    return f"Removed {count} things that no run reaches, {removed.bytes / 1e6:,.1f} MB"
