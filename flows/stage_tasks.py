"""The stages of a run as tasks of a Prefect flow.

A training is a flow run, and each stage that is computed is a task of it: Prefect calls the function that
computes the stage, so its retries, timeouts, limits, hooks and logs act on stages. The plan's walk decides
what is computed and when; artifacts that are reused have no task run.

The flow runs in a thread of its own, which imports Prefect and finds or starts a server when the first stage
is to be computed. If nothing is computed, nothing of this happens. If Prefect's API goes away, its engine
continues to call the tasks, and the run says at its end that Prefect's record is not complete.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from contextvars import copy_context
from pathlib import Path
from types import TracebackType

from erl_pipeline.plan.runner import Made, RunnerCall, StageJob
from erl_pipeline.plan.stage import StageOutcome
from flows.places import StagePool
from flows.submissions import Submissions, TaskOptions
from storage.errors import Interrupted

_LOOK_SECONDS = 0.2
_PATIENCE_SECONDS = 3.0
"""How many seconds an ended run waits for an API that does not answer."""


PREFECT_VARIABLES = {
    # Prefect's client reports usage to its makers unless this is set before the import.
    "DO_NOT_TRACK": "1",
    # Else Prefect would start a server of its own where one of its threads does not know the API's URL.
    "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
    # Else Prefect prints each event that a lost server does not take; the run says that once, at its end.
    "PREFECT_INTERNAL_LOGGING_LEVEL": "CRITICAL",
}
"""Environment variables of processes that import Prefect, where the user has not set them."""


def prepare_for_prefect() -> None:
    """Set what Prefect reads when it is imported; to be called before that."""
    for name, value in PREFECT_VARIABLES.items():
        os.environ.setdefault(name, value)
    # Else Prefect's handlers print a traceback for each line that a lost server does not take.
    logging.raiseExceptions = False


class StageTasks:
    """A `Runner` whose computed stages are tasks of one flow run, which Prefect runs again.

    Args:
        options: by the names of stages.
        log_file: gets the output of Prefect and of its local server.

    Raises ConfigError for options of a stage that the run's plan does not have.
    """

    retries = True

    def __init__(
        self,
        call: RunnerCall,
        pool: StagePool,
        options: Mapping[str, TaskOptions],
        log_file: Path,
    ) -> None:
        self._submissions = Submissions(call, pool, options)
        self._call = call
        self._pool = pool
        self._log_file = log_file
        self._url = ""
        self._lost = ""
        self._flow: Future[None] | None = None

    def __enter__(self) -> StageTasks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._submissions.end(error)
        if self._flow is None:
            return
        if not self._has_ended(self._flow):
            self._lost = self._no_answer()
        elif error is None:
            self._flow.result()
        if self._lost and self._submissions.ready.is_set():
            computed = sum(self._submissions.work().computed.values())
            self._call.listener.warn(
                f"{self._lost}. Its record of this flow run and of the {computed} stages that were computed "
                "is not complete; what they have committed is whole"
            )

    @property
    def shares_files(self) -> bool:
        """Whether stages can write into a folder of the driver's machine."""
        return self._pool.shares_files

    @property
    def workers(self) -> int:
        """How many stages can be computed at the same time."""
        return self._pool.workers

    def prepare(self) -> None:
        """Wait until the flow run has begun.

        Raises OrchestratorError when Prefect's API cannot be started or reached, and Interrupted when the run
        was asked to stop meanwhile.
        """
        if self._flow is None:
            self._flow = Future()
            # A run that has ended does not wait for a thread that waits for a lost server.
            threading.Thread(
                target=copy_context().run, args=(self._run, self._flow), name="prefect", daemon=True
            ).start()
        while not self._submissions.ready.wait(_LOOK_SECONDS):
            if self._call.stop.is_set():
                raise Interrupted
        if self._flow.done():
            self._flow.result()

    def submit(self, job: StageJob) -> Future[Made]:
        """Begin a stage."""
        return self._submissions.put(job)

    def finished(self, outcome: StageOutcome) -> None:
        """Count an artifact that the flow run computed or reused."""
        self._submissions.finished(outcome)

    def _has_ended(self, flow: Future[None]) -> bool:
        """Wait for the end of the flow run; False if the API does not answer, or if the run was asked to stop
        before it did."""
        last = time.monotonic()
        while not wait([flow], _LOOK_SECONDS).done:
            if self._answers():
                last = time.monotonic()
            elif time.monotonic() - last > _PATIENCE_SECONDS:
                return False
        return True

    def _no_answer(self) -> str:
        return f"Prefect's API{self._url and f' at {self._url}'} does not answer"

    def _answers(self) -> bool:
        if not self._url:  # It is started, for which there is a limit, or Prefect is imported.
            return not self._call.stop.is_set()
        from flows.local_server import answers

        return answers(self._url)

    def _run(self, ended: Future[None]) -> None:
        try:
            self._run_flow()
        except BaseException as error:  # The futures hand it to the thread of the run.
            ended.set_exception(error)
            self._submissions.ready.set()
            self._submissions.refuse(error)
        else:
            ended.set_result(None)

    def _run_flow(self) -> None:
        prepare_for_prefect()
        from flows.local_server import WentAway, log_to_file, prefect_api
        from flows.training_flow import compute_without_api, run_training

        with log_to_file(self._log_file):
            try:
                with prefect_api(self._log_file) as self._url:
                    run_training(self._submissions, self._url)
            except WentAway as error:
                if not self._lost:
                    self._call.listener.warn(f"{error}. The run continues without it")
                self._lost = str(error) if self._url and self._answers() else self._no_answer()
                self._submissions.ready.set()
                compute_without_api(self._submissions, self._url)
