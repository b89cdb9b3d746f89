"""Reports of a run to Prefect: a flow run, its stages as task runs, a table of iterations.

A separate thread sends all reports, with the times at which things happened. It imports Prefect and starts
the server when the first stage is computed, so that no stage waits for either (together 5 to 10 seconds). If
nothing is computed, no thread is started.

Prefect only shows a run. If its API goes away, the run continues, and says at its end what Prefect missed.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import Counter
from concurrent.futures import Future, wait
from contextvars import copy_context
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from uuid import UUID

from erl_pipeline.engines.interface import Interrupted
from erl_pipeline.plan.job import StageOutcome
from erl_pipeline.plan.plan import PlannedStage
from erl_pipeline.plan.runner import RunnerCall
from flows.task_states import CANCELLED, COMPLETED, FAILED, RUNNING, TaskRun, TaskState, Work

if TYPE_CHECKING:
    from flows.page import RunPage

_BATCH_SECONDS = 0.3
_TABLE_SECONDS = 10.0
_LOOK_SECONDS = 0.2
_PATIENCE_SECONDS = 3.0
"""How many seconds an ended run waits for an API that does not answer."""


class TaskRuns:
    """Queues reports to Prefect, and waits for Prefect only at the end of the run, while its API answers.

    Args:
        log_file: gets the output of Prefect and of its local server.
    """

    def __init__(self, call: RunnerCall, log_file: Path) -> None:
        self._worker = call.worker
        self._listener = call.listener
        self._stop = call.stop
        self._log_file = log_file
        self._states: queue.SimpleQueue[TaskState | None] = queue.SimpleQueue()
        self._task_runs: dict[UUID, TaskRun] = {}
        self._makers: dict[str, UUID] = {}
        self._computed: Counter[str] = Counter()
        self._reused, self._seconds = 0, 0.0
        self._changed = 0.0
        self._error: BaseException | None = None
        self._ended = 0
        self._url = ""
        self._page: RunPage | None = None
        self._lost = False
        self._telling: Future[None] | None = None

    def __enter__(self) -> TaskRuns:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._error = error
        self._states.put(None)
        if self._telling is None:
            return
        if not self._has_told_all(self._telling):
            self._lost = True
        elif error is None:
            self._telling.result()
        if self._lost:
            told = 0 if self._page is None else self._page.told
            self._listener.warn(
                f"Prefect's API{self._url and f' at {self._url}'} does not answer. Its page lacks the end of "
                f"this flow run and of {self._ended - told} of the {self._ended} stages that were computed; "
                "what they have committed is whole"
            )

    def started(self, planned: PlannedStage) -> UUID:
        """Report that the computation of a stage begins; returns the id of its task run.

        Raises OrchestratorError when Prefect's API could not be started or reached.
        """
        if self._telling is None:
            self._telling = Future()
            # A run that has ended does not wait for a thread that waits for a lost server.
            threading.Thread(
                target=copy_context().run, args=(self._run, self._telling), name="prefect", daemon=True
            ).start()
        elif self._telling.done():
            self._telling.result()
        now = datetime.now(UTC)
        inputs = planned.recipe.inputs.items()
        parents = {name: self._makers[each] for name, each in inputs if each in self._makers}
        task_run = TaskRun(planned.title, planned.stage.name, planned.iteration, now, parents)
        self._task_runs[task_run.id] = task_run
        self._makers[planned.artifact_id] = task_run.id
        self._states.put(TaskState(task_run, RUNNING, now, ""))
        return task_run.id

    def ended(self, task_run: UUID, error: BaseException | None, message: str = "") -> None:
        """Report that a stage is computed, or that it raised `error`."""
        type_ = COMPLETED if error is None else CANCELLED if isinstance(error, Interrupted) else FAILED
        said = message or f"{type(error).__name__}: {error}"
        self._ended += 1
        self._states.put(TaskState(self._task_runs.pop(task_run), type_, datetime.now(UTC), said))

    def recorded(self, outcome: StageOutcome) -> None:
        """Count an artifact that the run's ledger now names."""
        self._changed = time.monotonic()
        if outcome.reused:
            self._reused += 1
            return
        self._computed[outcome.stage] += 1
        self._seconds += outcome.seconds

    def _has_told_all(self, telling: Future[None]) -> bool:
        """Wait for the end of the reports; False if the API does not answer, or if the run was asked to stop
        before it did."""
        last = time.monotonic()
        while not wait([telling], _LOOK_SECONDS).done:
            if self._answers():
                last = time.monotonic()
            elif time.monotonic() - last > _PATIENCE_SECONDS:
                return False
        return True

    def _answers(self) -> bool:
        if not self._url:  # It is started, for which there is a limit, or Prefect is imported.
            return not self._stop.is_set()
        from flows.local_server import answers

        return answers(self._url)

    def _run(self, telling: Future[None]) -> None:
        try:
            self._tell()
        except BaseException as error:  # The future hands it to the thread of the run.
            telling.set_exception(error)
        else:
            telling.set_result(None)

    def _tell(self) -> None:
        # Prefect's client reports usage to its makers unless this is set before the import.
        os.environ.setdefault("DO_NOT_TRACK", "1")
        from flows.local_server import WentAway, log_to_file, prefect_api
        from flows.page import open_page

        try:
            with (
                log_to_file(self._log_file),
                prefect_api(self._log_file) as self._url,
                open_page(self._worker, self._url) as self._page,
            ):
                if refused := self._page.end_left_behind():
                    self._listener.warn(refused)
                self._tell_until_end(self._page)
                self._page.end(self._error)
        except WentAway as error:
            if not self._lost:
                self._listener.warn(f"{error}. The run continues without it")
            self._lost = True

    def _tell_until_end(self, page: RunPage) -> None:
        shown, due = 0.0, time.monotonic() + _TABLE_SECONDS
        while True:
            batch, goes_on = self._batch()
            page.tell(batch)
            if not goes_on or (self._changed > shown and time.monotonic() > due):
                begun = shown = time.monotonic()
                page.show_table()
                # Making the table of a long run in a bucket takes long; limit it to a twentieth of the time.
                due = time.monotonic() + max(_TABLE_SECONDS, 20 * (time.monotonic() - begun))
            if not goes_on:
                page.show_summary(Work(self._computed, self._reused, self._seconds))
                if missing := page.await_records():
                    self._listener.warn(f"Prefect's server has not written {missing} task runs")
                return

    def _batch(self) -> tuple[list[TaskState], bool]:
        """The states that arrive within `_BATCH_SECONDS`, and whether more will come."""
        batch: list[TaskState] = []
        deadline = time.monotonic() + _BATCH_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            try:
                state = self._states.get(timeout=left)
            except queue.Empty:
                break
            if state is None:
                return batch, False
            batch.append(state)
        return batch, True
