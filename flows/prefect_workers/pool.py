"""Computing stages on workers that dial in from other machines."""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import ExitStack, suppress
from types import TracebackType

from erl_pipeline.engines.interface import Interrupted
from erl_pipeline.plan.runner import RunnerCall
from flows.local_server import OrchestratorError
from flows.nodes.check import differences, require_fit
from flows.places import Loss
from flows.prefect_workers.questions import NoAnswer, dismiss
from flows.prefect_workers.reception import Reception
from flows.prefect_workers.recruiting import Arrival, FlowRunStarter, NotCome, Recruiter
from flows.prefect_workers.settings import PrefectWorkersConfig
from flows.prefect_workers.worker import DialledInWorker
from flows.remote_pool import RemotePool
from storage.errors import ConfigError, StoreError

_AGAIN_SECONDS = 5.0
_END_SECONDS = 60.0


class DialInPool(RemotePool[DialledInWorker]):
    """Workers on other machines. All dial in, and are checked, before the first stage.

    A worker that is lost is asked for again; until it has come there is one less.
    """

    def __init__(self, call: RunnerCall, settings: PrefectWorkersConfig, starter: FlowRunStarter) -> None:
        loss = Loss(
            "a worker",
            "all workers that can compute it are lost, and no other has dialled in",
            f"Start workers: prefect worker start --pool {settings.work_pool}",
        )
        super().__init__(call, settings.workers, loss)
        self._settings = settings
        self._starter = starter
        self._opened = ExitStack()

    def __enter__(self) -> DialInPool:
        with ExitStack() as stack:
            reception = stack.enter_context(Reception(self._settings.address))
            stack.callback(self._threads.shutdown)
            self._recruiter = Recruiter(self._starter, reception, self._settings.start_seconds)
            self._start_workers()
            self._opened = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._opened:
            self._threads.shutdown()
            self._closing.set()
            for thread in self._replacing:
                thread.join()
            self._end_workers()

    def _start_workers(self) -> None:
        refused = threading.Event()

        def given_up() -> bool:
            return refused.is_set() or self._call.stop.is_set()

        with self._survey() as survey:
            coming = [
                self._threads.submit(self._recruiter.recruit, place, survey, given_up)
                for place in range(self._settings.workers)
            ]
            wait(coming, return_when=FIRST_EXCEPTION)
            refused.set()
            wait(coming)
        arrivals = [each.result() for each in coming if each.exception() is None]
        with ExitStack() as dismissing:
            for arrival in arrivals:
                dismissing.callback(dismiss, arrival.line)
            self._require_all(coming)
            findings = [arrival.finding for arrival in arrivals]
            require_fit(findings, "runner.work_pool: these workers cannot compute this run:")
            dismissing.pop_all()
        for warning in differences(findings):
            self._call.listener.warn(warning)
        for place, arrival in enumerate(arrivals):
            self._places.enter(place, DialledInWorker(arrival))

    def _require_all(self, coming: list[Future[Arrival]]) -> None:
        errors = [error for each in coming if (error := each.exception()) is not None]
        not_come = [str(error) for error in errors if isinstance(error, NotCome)]
        for error in errors:
            if not isinstance(error, NotCome | Interrupted):
                raise error
        if not_come:
            settings = self._settings
            advice = (
                "A Prefect worker takes only as many flow runs at a time as its --limit says. Start more "
                "workers, lower runner.workers, or raise runner.start_seconds"
            )
            head = f"runner.workers: {settings.workers}: not all of them came:"
            raise ConfigError("\n  ".join([head, *not_come, advice]))
        for error in errors:
            raise error

    def _is_gone(self, worker: DialledInWorker) -> bool:
        return worker.is_gone()

    def _replace(self, place: int) -> None:
        told = False
        while not self._closing.is_set():
            try:
                with self._survey() as survey:
                    arrival = self._recruiter.recruit(place, survey, self._closing.is_set)
                if problems := arrival.finding.problems:
                    dismiss(arrival.line)
                    where = arrival.finding.node.address
                    self._call.listener.warn(f"node {where} joined and is not used: {'; '.join(problems)}")
                else:
                    self._places.enter(place, DialledInWorker(arrival))
                return
            except Interrupted:
                return
            except (NotCome, NoAnswer, OrchestratorError, StoreError) as error:
                if not told:
                    self._call.listener.warn(f"a lost worker is not replaced yet: {error}")
                told = True
                self._closing.wait(_AGAIN_SECONDS)

    def _end_workers(self) -> None:
        workers = self._places.workers
        for worker in workers:
            worker.ask_to_close()
        until = time.monotonic() + _END_SECONDS
        for worker in workers:
            if not worker.await_end(max(0.0, until - time.monotonic())):
                self._call.listener.warn(
                    f"{worker} has not ended within {_END_SECONDS:.0f} s; it is cancelled"
                )
                with suppress(OrchestratorError):  # The run is done, whatever Prefect shows.
                    self._starter.cancel(worker.asked)
