"""What every scheduled flow does around its work: the run's lock, a device, signals, the final state."""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import ConcurrencyLeaseHolder, State
from prefect.exceptions import PrefectHTTPStatusError
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.settings import (
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    temporary_settings,
)
from prefect.states import Cancelled, Completed, Failed

from erl_pipeline.config.loading import load_config
from erl_pipeline.garbage import search_seldom
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
from storage.errors import ConfigError, InputError, Interrupted, PipelineError, RunBusy
from storage.runs.run import Run, RunStore

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.stage import Listener, StageOutcome
    from erl_pipeline.runs.driver import OpenRun

Overlap = Literal["skip", "wait"]
SKIPPED = "Skipped"

_BUSY_SECONDS = 2.0
LEASE_SECONDS = 60.0
"""How many seconds the slot of a killed process stays taken: the shortest lease that Prefect gives."""

_LOOK_SECONDS = 2.0
_RENEW_SECONDS = 15.0
_AGAIN_SECONDS = 5.0
"""After how many seconds a renewal is tried again that failed."""
_REQUEST_SECONDS = 5.0
_RELEASE_RETRIES = 1
_LOST = (httpx.codes.NOT_FOUND, httpx.codes.GONE)
"""What Prefect's server answers when it does not know a lease (any more)."""

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
    flow_run_id = flow_run.get_id()
    assert flow_run_id is not None

    def attempt(stop: threading.Event, logger: Logger, link: WorkerLink) -> State[None]:
        from erl_pipeline.runs.driver import open_run

        run = find_or_begin(request)
        config = run_config(run)
        listener = listener_for(run, config, logger, link)
        with (
            open_run(config, request.store, listener, stop) as opened,
            device_slot(request.concurrency_limit, flow_run_id, stop, logger.info),
        ):
            return Completed(message=work(opened))

    return conclude(request, attempt)


def conclude(
    request: ScheduledRun, work: Callable[[threading.Event, Logger, WorkerLink], State[None]]
) -> State[None]:
    """Call `work` with a stop event that signals set, and tell the worker how the flow run ended.

    `work` is called again, if the request asks to wait, until no other process has the run: that process may
    have gone on with other settings.
    """
    logger = get_run_logger()
    stop = threading.Event()

    def told() -> State[None]:
        outcome = "failed"
        with link_to_worker(os.environ.get(LINK_VARIABLE)) as link:
            link.send(FlowStarted(request.flow, request.run))
            try:
                state = _when_free(request.overlap, stop, logger, lambda: work(stop, logger, link))
                outcome = "skipped" if state.name == SKIPPED else state.type.value.lower()
            except PipelineError as error:
                logger.error("%s", error)
                state = Failed(message=str(error))
            finally:
                link.send(FlowEnded(request.flow, request.run, outcome))
        return state

    search_seldom()
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        state = call_beside_signals(told, lambda _number: stop.set())
    logger.info("%s", state.message)
    return state


def _when_free(
    overlap: Overlap, stop: threading.Event, logger: Logger, work: Callable[[], State[None]]
) -> State[None]:
    told = False
    try:
        while True:
            try:
                return work()
            except RunBusy as busy:
                if overlap == "skip":
                    return Completed(name=SKIPPED, message=f"Skipped: {busy}")
                if not told:
                    logger.info("Waiting: %s", busy)
                    told = True
                if stop.wait(_BUSY_SECONDS):
                    raise Interrupted from None
    except Interrupted:
        return Cancelled(message="Asked to stop; what was committed is kept")


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
    from erl_pipeline.plan.stage import Listener

    class Reporter(Listener):
        iterations = completed_iterations(config, run.recorded())
        _, last = policy_makers(config)

        def stage_finished(self, title: str, outcome: StageOutcome) -> None:
            if outcome.stage == self.last:
                self.iterations = max(self.iterations, outcome.iteration or 0)
            if not outcome.reused:
                logger.info("%s in %.1f s, artifact %s", title, outcome.seconds, outcome.artifact_id[:12])
            link.send(StageEnded(run.name, self.iterations, outcome))

        def warn(self, message: str) -> None:
            logger.warning("%s", message)

    return Reporter()


@contextmanager
def device_slot(
    limit: str | None, flow_run_id: str, stop: threading.Event, tell: Callable[[str], None]
) -> Iterator[None]:
    """Wait for a slot of the limit and hold it inside this context.

    Args:
        limit: name of a global concurrency limit of Prefect; None to hold no slot.
        stop: ends the waiting. It is also set when the slot is lost, because then another run may get the
            device.
        tell: called with a line of text when waiting begins and ends, and when the slot is lost.

    Raises:
        ConfigError: Prefect has no limit of that name.
        Interrupted: `stop` was set while waiting.
    """
    if limit is None:
        yield
        return
    with get_client(sync_client=True) as client:
        lease = _acquire(client, limit, flow_run_id, stop, tell)
    done = threading.Event()
    # Prefect keeps its settings, such as the API's URL, in context variables: the thread needs a copy.
    renew = partial(contextvars.copy_context().run, _renew, lease, limit, done, stop, tell)
    renewing = threading.Thread(target=renew, daemon=True)
    renewing.start()
    try:
        yield
    finally:
        done.set()
        renewing.join(_REQUEST_SECONDS)
        try:
            with _asking_shortly(_RELEASE_RETRIES) as client:
                client.release_concurrency_slots_with_lease(lease)
        except httpx.HTTPError as error:
            tell(f"The slot of {limit!r} could not be released; it is free in a minute ({error})")


@contextmanager
def _asking_shortly(retries: int) -> Iterator[SyncPrefectClient]:
    """A client that gives up soon: by default Prefect's asks for minutes, which is longer than a lease."""
    # With a timeout it is never the client of the flow run, which waits for a minute.
    timeout = {"timeout": _REQUEST_SECONDS}
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: retries}),
        get_client(sync_client=True, httpx_settings=timeout) as client,
    ):
        yield client


def _acquire(
    client: SyncPrefectClient,
    limit: str,
    flow_run_id: str,
    stop: threading.Event,
    tell: Callable[[str], None],
) -> UUID:

    holder = ConcurrencyLeaseHolder(type="flow_run", id=UUID(flow_run_id))
    told = False
    while True:
        try:
            response = client.increment_concurrency_slots_with_lease(
                [limit], 1, "concurrency", LEASE_SECONDS, holder
            )
        except PrefectHTTPStatusError as error:
            # Prefect's server answers with these while its SQLite database is locked by another writer.
            if error.response.status_code not in (httpx.codes.LOCKED, httpx.codes.SERVICE_UNAVAILABLE):
                raise
        else:
            answer = response.json()
            if not answer["limits"]:
                raise ConfigError(
                    f"Prefect has no concurrency limit {limit!r}; `erl-pipeline serve` creates `gpu`. "
                    f"Create this one with: prefect gcl create {limit} --limit 1"
                )
            if told:
                tell(f"Got a slot of {limit!r}")
            return UUID(answer["lease_id"])
        if not told:
            tell(f"Waiting for a slot of the concurrency limit {limit!r}: all are taken")
            told = True
        if stop.wait(_LOOK_SECONDS):
            raise Interrupted


def _renew(
    lease: UUID, limit: str, done: threading.Event, stop: threading.Event, tell: Callable[[str], None]
) -> None:
    """Renew the lease until `done`; set `stop` before it ends, or when the server no longer knows it."""

    def lose(reason: object) -> None:
        tell(f"Stopping: the slot of {limit!r} could not be renewed; others may get it: {reason}")
        stop.set()

    def ending(asked: float) -> threading.Timer:
        # Beside the requests: even one that is not tried again may take as long as the server asks for.
        seconds = asked + LEASE_SECONDS - _RENEW_SECONDS - time.monotonic()
        run = contextvars.copy_context().run
        timer = threading.Timer(max(0.0, seconds), run, [lose, "Prefect's server does not answer"])
        timer.daemon = True
        timer.start()
        return timer

    end, pause = ending(time.monotonic()), _RENEW_SECONDS
    with _asking_shortly(retries=0) as client:
        while not done.wait(pause):
            asked = time.monotonic()
            try:
                client.renew_concurrency_lease(lease, LEASE_SECONDS)
            except httpx.HTTPError as error:
                pause = _AGAIN_SECONDS
                if isinstance(error, PrefectHTTPStatusError) and error.response.status_code in _LOST:
                    lose(error)
                    break
            else:
                end.cancel()
                end, pause = ending(asked), _RENEW_SECONDS
    end.cancel()
