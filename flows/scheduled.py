"""The flows of the deployments: training, one more iteration, evaluation, learning from traffic, maintenance.

A worker runs each flow run in a process of its own. Heavy modules are imported only there.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows.scheduled_run import (
    Logger,
    Overlap,
    ScheduledRun,
    conclude,
    device_slot,
    listener_for,
    work_on_run,
)
from flows.worker_link import WorkerLink
from storage.errors import ConfigError, InputError, RunBusy
from storage.runs.run import RunStore
from storage.texts import counted

if TYPE_CHECKING:
    from erl_pipeline.runs.driver import OpenRun


@flow(name="train", flow_run_name="{run}")
def train(
    run: str,
    store: str,
    iterations: int | None = None,
    config: str | None = None,
    overlap: Overlap = "skip",
    concurrency_limit: str | None = "gpu",
) -> State[None]:
    """Train a run up to a number of iterations; what is committed is reused.

    Args:
        run: name of the run in the store.
        store: a folder or URI.
        iterations: how many iterations the run is to have; default: as in the configuration.
        config: a configuration file to begin the run with when the store does not have it.
        overlap: what to do when another process works on the run.
        concurrency_limit: name of a global concurrency limit; a slot of it is held during the work; null for
            none.
    """
    request = ScheduledRun("train", run, store, config, overlap, concurrency_limit)
    return work_on_run(request, lambda opened: _train(opened, iterations or opened.config.iterations))


@flow(name="one-iteration", flow_run_name="{run}")
def iteration(
    run: str,
    store: str,
    config: str | None = None,
    overlap: Overlap = "skip",
    concurrency_limit: str | None = "gpu",
) -> State[None]:
    """Train a run for one more iteration, or end the last one if it lacks its evaluation.

    For the arguments see `train`.
    """
    request = ScheduledRun("iteration", run, store, config, overlap, concurrency_limit)
    return work_on_run(request, lambda opened: _train(opened, _next_iteration(opened)))


@flow(name="evaluate", flow_run_name="{run}")
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
        tasks: how many; default: as many as in the run's own evaluations.
        samples: sampled attempts at each task besides the greedy one.
    """
    request = ScheduledRun("evaluate", run, store, None, overlap, concurrency_limit)
    return work_on_run(request, lambda opened: _evaluate(opened, tasks, samples))


@flow(name="learn", flow_run_name="{run}")
def learn(
    run: str,
    store: str,
    config: str | None = None,
    overlap: Overlap = "skip",
    concurrency_limit: str | None = "gpu",
) -> State[None]:
    """Seal the settled traffic of a served run, train on it, and judge the new checkpoint, as
    `erl-pipeline learn`. For other arguments see `train`.

    Args:
        config: a file with the settings of serving; default: the defaults.
    """
    request = ScheduledRun("learn", run, store, None, overlap, concurrency_limit)
    return conclude(request, lambda stop, logger, link: _learn(request, config, stop, logger, link))


@flow(name="maintain", flow_run_name="{run}")
def maintain(run: str, store: str, garbage_days: float | None = None) -> State[None]:
    """Check a whole run: files against manifests, rows against rows, memory against artifacts. If there is no
    problem, prune old files by the rules of the run's `retention`.

    If there is a problem, the flow run fails and names it. It needs no device. The check needs no lock; while
    another process works on the run, that process applies the rules.

    Args:
        garbage_days: if there is no problem, also remove from the store what no run reaches and is older than
            this many days; null removes nothing.
    """
    request = ScheduledRun("maintain", run, store, None, "skip", None)
    return conclude(request, lambda _stop, logger, _link: _maintain(request, garbage_days, logger.error))


def _next_iteration(opened: OpenRun) -> int:
    """The iteration to which one more iteration trains. A flow run that was killed between the policy of its
    iteration and the end of the plan has it still to end: nobody else would evaluate that policy.

    Raises ConfigError where today's code would make earlier iterations again, which may take days.
    """
    from erl_pipeline.runs.planning import plan_for, recorded_ids
    from erl_pipeline.runs.state import begun_iterations, completed_iterations
    from storage.memory.versions import FORGET_STAGE

    entries = opened.entries()
    done = completed_iterations(opened.config, entries)
    if done == 0:
        return 1
    plan = plan_for(opened.store.uri, opened.run, opened.config, done, entries=entries)
    recorded = recorded_ids(entries)
    # Stages that are missing only have to be completed. Nothing is made from an evaluation, and a request to
    # forget changes nothing that was made before it.
    changed = [
        node.place.iteration
        for node in plan.nodes
        if node.place.iteration
        and node.stage.output not in ("evaluation", "table")
        and node.stage.name != FORGET_STAGE
        and recorded.get(node.place, node.artifact_id) != node.artifact_id
    ]
    if changed:
        run = opened.run.name
        raise ConfigError(
            f"today's code makes iterations {min(changed)} to {done} of run {run} again, and not one more: "
            f"`erl-pipeline plan {run}` says why. To have them made again call `erl-pipeline train` once; to "
            "go on as before put the earlier code back"
        )
    if begun_iterations(entries) > done:
        return done + 1
    lacks = any(node.place not in opened.recorded for node in plan.of_iteration(done))
    return done if lacks else done + 1


def _train(opened: OpenRun, iterations: int) -> str:
    from erl_pipeline.runs.train import train as train_run

    before = len(opened.entries())
    train_run(opened, iterations)
    if len(opened.entries()) == before:
        return f"Nothing to do: committed through iteration {iterations}"
    return f"Committed through iteration {iterations}{_report(opened, iterations)}"


def _report(opened: OpenRun, iterations: int) -> str:
    """Renew the report in the run's folder; a phrase that says where it is, empty if none was made."""
    from erl_pipeline.runs.state import renew_report
    from storage.filesystem import open_root

    page = open_root(opened.store.uri).scratch / "runs" / opened.run.name / "report.html"
    made = renew_report(opened.store, opened.run, iterations, page)
    return "" if made is None else f"; report: {made}"


def _evaluate(opened: OpenRun, tasks: int | None, samples: int) -> str:
    from erl_pipeline.plan.plan import POLICY
    from erl_pipeline.plan.sources import unread_sources
    from erl_pipeline.runs.on_request import evaluate_on_request
    from erl_pipeline.runs.planning import plan_as_made
    from erl_pipeline.runs.state import current_checkpoint

    checkpoint = current_checkpoint(opened.store, opened.run, opened.config)
    if checkpoint is None:
        raise InputError(f"run {opened.run.name} has no checkpoint yet; train it first")
    beginning = plan_as_made(opened.store.uri, opened.run, 0, sources=unread_sources(opened.config)).states[0]
    iteration = checkpoint.iteration or 0
    outcome = evaluate_on_request(
        opened, iteration, checkpoint.artifact_id, beginning.bases.get(POLICY), samples, count=tasks
    )
    _report(opened, iteration)
    return (
        f"Checkpoint {checkpoint.artifact_id[:12]} (iteration {iteration}): greedy success "
        f"{outcome.metrics['greedy_success']:.3f} on {tasks or opened.config.evaluation.tasks} held-out tasks"
    )


def _learn(
    request: ScheduledRun, config: str | None, stop: Event, logger: Logger, link: WorkerLink
) -> State[None]:
    from erl_pipeline.runs.driver import open_run
    from erl_pipeline.serving.learning.nights import conclude_night, next_night, train_night
    from erl_pipeline.serving.settings import load_serving_settings

    settings = load_serving_settings(None if config is None else Path(config))
    flow_run_id = flow_run.get_id()
    assert flow_run_id is not None
    due = next_night(request.store, request.run, settings, datetime.now(UTC))
    night = due.night
    if night is None:
        return Completed(message=f"Nothing is trained: {due.reason}")
    run = RunStore(request.store).open_or_create(night.name, night.config.model_dump(mode="json"))
    listener = listener_for(run, night.config, logger, link)
    with (
        open_run(night.config, request.store, listener, stop) as opened,
        device_slot(request.concurrency_limit, flow_run_id, stop, logger.info),
    ):
        train_night(opened, night)
    judged = conclude_night(request.store, night, settings, "schedule")
    if judged.change is not None:
        changed = f"{judged.change.alias} is now this checkpoint"
    else:
        changed = f"{judged.kept}: no alias was changed" if judged.kept else "no alias was changed"
    return Completed(message=f"Night {night.name}: {judged.verdict.reason}; {changed}")


def _maintain(request: ScheduledRun, garbage_days: float | None, tell: Callable[[str], None]) -> State[None]:
    from storage.artifacts.store import ArtifactStore
    from storage.runs.run import RunStore
    from storage.upkeep.verification import verify_run

    report = verify_run(ArtifactStore(request.store), RunStore(request.store).open(request.run))
    for problem in report.problems:
        tell(problem)
    checked = (
        f"{counted(report.artifacts, 'artifact')}, {counted(report.files, 'file')}, "
        f"{report.bytes / 1e6:,.1f} MB"
    )
    if report.problems:
        return Failed(
            message=f"{counted(len(report.problems), 'problem')} in {checked}, the first: "
            f"{report.problems[0]}. Make damaged artifacts again with: erl-pipeline train CONFIG --check"
        )
    retained = _retain(request.store, request.run)
    collected = "" if garbage_days is None else f". {_collect(request.store, garbage_days)}"
    return Completed(message=f"All is whole: {checked}{retained}{collected}")


def _retain(store: str, run: str) -> str:
    """Apply the run's rules of retention; a sentence about what was pruned, empty if nothing was."""
    from erl_pipeline.runs.retention import retain_run
    from storage.artifacts.store import ArtifactStore
    from storage.runs.run import RunStore

    try:
        pruned = retain_run(ArtifactStore(store), RunStore(store).open(run))
    except RunBusy as busy:
        return f". No file was pruned: {busy}"
    if not pruned:
        return ""
    size = sum(pruning.bytes for pruning in pruned)
    return f". Pruned by retention: {sum(len(p.files) for p in pruned)} files, {size / 1e6:,.1f} MB"


def _collect(store: str, days: float) -> str:
    from storage.upkeep.collection import collect

    try:
        removed = collect(store, timedelta(days=days))
    except RunBusy as busy:
        return f"No garbage was removed: {busy}"
    count = len(removed.unreached) + len(removed.leftovers)
    return f"Removed what no run reaches: {counted(count, 'thing')}, {removed.bytes / 1e6:,.1f} MB"
