"""What every scheduled flow does around its work: the run's lock, a device, signals, the final state."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Cancelled, Completed, Failed

from erl_pipeline.config.loading.load import load_config
from erl_pipeline.runs.config import run_config
from erl_pipeline.runs.state import completed_iterations, policy_makers
from flows.signals import call_beside_signals
from flows.worker_link import (
    LINK_VARIABLE,
    FlowEnded,
    FlowStarted,
    StageEnded,
    WorkerLink,
    link_to_worker,
)
from storage.errors import InputError, PipelineError, RunBusy
from storage.runs.run import Run, RunStore

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.job import StageOutcome
    from erl_pipeline.plan.listener import Listener
    from erl_pipeline.runs.driver import OpenRun

Overlap = Literal["skip", "wait"]
SKIPPED = "Skipped"

_BUSY_SECONDS = 2.0

Logger = logging.Logger | logging.LoggerAdapter[Any]


@dataclass(frozen=True)
class ScheduledRun:
    """Which run a flow works on, and what it waits for.

    `config` is a configuration file to begin the run with when the store does not have it;
    `concurrency_limit` names a limit of Prefect, a slot of which is held during the work; `overlap` says what
    to do when another process works on the run.
    """

    flow: str
    run: str
    store: str
    config: str | None
    overlap: Overlap
    concurrency_limit: str | None


def work_on_run(request: ScheduledRun, work: Callable[[OpenRun], str]) -> State[None]:
    """Call `work` with the open run, while its lock and a device are held; returns the final state.

    Errors that a user can act on become the message of a failed state; others propagate. The state is
    `Skipped` if another process has the run and the request asks to skip, and cancelled after SIGINT or
    SIGTERM. `work` returns the message of the completed state.
    """
    from storage.errors import Interrupted

    flow_run_id = flow_run.get_id()
    assert flow_run_id is not None

    def attempt(stop: threading.Event, logger: Logger, link: WorkerLink) -> State[None]:
        from erl_pipeline.runs.driver import open_run
        from flows.device_slot import device_slot

        run = find_or_begin(request)
        config = run_config(run)
        listener = listener_for(run, config, logger, link)
        told = False
        while True:
            try:
                with ExitStack() as stack:
                    opened = stack.enter_context(open_run(config, request.store, listener, stop))
                    stack.enter_context(
                        device_slot(request.concurrency_limit, flow_run_id, stop, logger.info)
                    )
                    return Completed(message=work(opened))
            except RunBusy as busy:
                if request.overlap == "skip":
                    return Completed(name=SKIPPED, message=f"Skipped: {busy}")
                if not told:
                    logger.info("Waiting: %s", busy)
                    told = True
                if stop.wait(_BUSY_SECONDS):
                    raise Interrupted from None

    def interruptible(stop: threading.Event, logger: Logger, link: WorkerLink) -> State[None]:
        try:
            return attempt(stop, logger, link)
        except Interrupted:
            return Cancelled(message="Asked to stop; what was committed is kept")

    return conclude(request, interruptible)


def conclude(
    request: ScheduledRun, work: Callable[[threading.Event, Logger, WorkerLink], State[None]]
) -> State[None]:
    """Call `work` with a stop event that signals set, and tell the worker how the flow run ended."""
    logger = get_run_logger()
    stop = threading.Event()

    def told() -> State[None]:
        outcome = "failed"
        with link_to_worker(os.environ.get(LINK_VARIABLE)) as link:
            link.send(FlowStarted(request.flow, request.run))
            try:
                state = work(stop, logger, link)
                outcome = "skipped" if state.name == SKIPPED else state.type.value.lower()
            except PipelineError as error:
                logger.error("%s", error)
                state = Failed(message=str(error))
            finally:
                link.send(FlowEnded(request.flow, request.run, outcome))
        return state

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        state = call_beside_signals(told, lambda _number: stop.set())
    logger.info("%s", state.message)
    return state


def find_or_begin(request: ScheduledRun) -> Run:
    """The run, begun with the request's configuration if the store does not have it yet.

    Raises InputError when there is neither a run nor a configuration, or when the configuration is another
    run's.
    """
    runs = RunStore(request.store)
    if request.config is None or request.run in runs.list():
        return runs.open(request.run)
    config = load_config(request.config)
    if config.name != request.run:
        raise InputError(f"{request.config} configures run {config.name}, not {request.run}")
    return runs.create(config.name, config.model_dump(mode="json"))


def listener_for(run: Run, config: RunConfig, logger: Logger, link: WorkerLink) -> Listener:
    """A listener that writes what stages do into the flow run's log and sends it to the worker."""
    from erl_pipeline.plan.listener import NullListener

    class Reporter(NullListener):
        iterations = completed_iterations(config, run.recorded())
        last = policy_makers(config).last

        def stage_finished(self, title: str, outcome: StageOutcome) -> None:
            if outcome.stage == self.last:
                self.iterations = max(self.iterations, outcome.iteration or 0)
            if not outcome.reused:
                logger.info("%s in %.1f s, artifact %s", title, outcome.seconds, outcome.artifact_id[:12])
            link.send(StageEnded(run.name, self.iterations, outcome))

        def warn(self, message: str) -> None:
            logger.warning("%s", message)

    return Reporter()
