"""Reports of a run to Prefect: a flow run, its stages as task runs, a table of iterations.

A separate thread sends all reports, with the times at which things happened. It imports Prefect and starts
the server when the first stage is computed, so that no stage waits for either (together 5 to 10 seconds). If
nothing is computed, no thread is started.
"""

from __future__ import annotations

import os
import queue
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
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


class TaskRuns:
    """Queues reports to Prefect, and waits for Prefect only at the end of the run.

    Args:
        log_file: gets the output of Prefect and of its local server.
    """

    def __init__(self, call: RunnerCall, log_file: Path) -> None:
        self._worker = call.worker
        self._listener = call.listener
        self._log_file = log_file
        self._states: queue.SimpleQueue[TaskState | None] = queue.SimpleQueue()
        self._task_runs: dict[UUID, TaskRun] = {}
        self._makers: dict[str, UUID] = {}
        self._computed: Counter[str] = Counter()
        self._reused, self._seconds = 0, 0.0
        self._changed = 0.0
        self._error: BaseException | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="prefect")
        self._telling: Future[None] | None = None

    def __enter__(self) -> TaskRuns:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._error = error
        self._states.put(None)
        if self._telling is not None and error is None:
            self._telling.result()
        self._executor.shutdown()

    def started(self, planned: PlannedStage) -> UUID:
        """Report that the computation of a stage begins; returns the id of its task run.

        Raises OrchestratorError when earlier reports could not be sent to Prefect.
        """
        if self._telling is None:
            self._telling = self._executor.submit(copy_context().run, self._tell)
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
        self._states.put(TaskState(self._task_runs.pop(task_run), type_, datetime.now(UTC), said))

    def recorded(self, outcome: StageOutcome) -> None:
        """Count an artifact that the run's ledger now names."""
        self._changed = time.monotonic()
        if outcome.reused:
            self._reused += 1
            return
        self._computed[outcome.stage] += 1
        self._seconds += outcome.seconds

    def _tell(self) -> None:
        # Prefect's client reports usage to its makers unless this is set before the import.
        os.environ.setdefault("DO_NOT_TRACK", "1")
        from flows.page import open_page

        with open_page(self._worker, self._log_file) as page:
            try:
                if refused := page.end_left_behind():
                    self._listener.warn(refused)
                self._tell_until_end(page)
            finally:
                page.end(self._error)

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
