"""Running stages as Prefect tasks and iterations as Prefect flows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

from prefect import Flow, Task, unmapped
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.exceptions import CancelledRun
from prefect.states import Cancelled
from prefect.task_runners import ThreadPoolTaskRunner

from erl_pipeline.engines.interface import Interrupted
from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.outcome import StageOutcome
from erl_pipeline.views.iteration_table import MOST_ROWS, IterationRow, iteration_row, stored_rows
from flows.page import publish_iterations, publish_summary
from storage.errors import EngineError, StoreError

T = TypeVar("T")

SHARD_RETRY_DELAYS = [1.0, 5.0]
"""Seconds before a rollout shard that failed for a passing reason is tried again."""


class PrefectRunner:
    """A `StageRunner` on Prefect: each stage call is a task run, each iteration a flow run.

    Prefect's own caching is off: a stage finds its committed artifact by its recipe, which also knows
    the content of its inputs and outlives Prefect's database.

    Args:
        first_flow: iterations before this one are called without Prefect: a schedule that adds one iteration
            a day would else show all the committed ones again every day.
    """

    def __init__(self, context: RunContext, first_flow: int = 1) -> None:
        self.rows: list[IterationRow] = []
        """The iterations that this process has been through, iteration 0 being what came before."""
        self._context = context
        self._first_flow = first_flow
        self._directly = False
        self._outcomes: list[StageOutcome] = []

    def call(self, stage: str, function: Callable[..., StageOutcome], *args: Any) -> StageOutcome:
        """One stage as one task run."""
        if self._directly:
            outcome = function(*args)
        else:
            outcome = Task(function, name=stage, cache_policy=NO_CACHE)(*args)
        self._outcomes.append(outcome)
        return outcome

    def map(
        self, stage: str, function: Callable[..., StageOutcome], context: RunContext, items: Sequence[Any]
    ) -> list[StageOutcome]:
        """One task run for each item; those that fail for a passing reason are tried again."""
        if self._directly:
            return [self.call(stage, function, context, item) for item in items]
        shard_task = Task(
            function,
            name=stage,
            cache_policy=NO_CACHE,
            retries=len(SHARD_RETRY_DELAYS),
            retry_delay_seconds=SHARD_RETRY_DELAYS,
            retry_condition_fn=self._tell_and_retry(stage),
        )
        futures = shard_task.map(unmapped(context), list(items))
        outcomes = [future.result() for future in futures]
        self._outcomes.extend(outcomes)
        return outcomes

    def iteration(self, iteration: int, body: Callable[[], T]) -> T:
        """One iteration as a flow run of its own, and a new version of the table of iterations."""
        self._finish_row()
        if iteration < self._first_flow:
            self._directly = True
            result = body()
            self._directly = False
            self._finish_row()
            return result
        result = call_as_flow(
            "iteration", f"{self._context.run.name} {iteration}", body, {"iteration": iteration}
        )
        self._finish_row()
        publish_iterations(self._context.run.name, [*self._earlier_rows, *self.rows[-MOST_ROWS:]])
        return result

    def publish_summary(self) -> None:
        """How the run began, how it stands, and what this process has done."""
        self._finish_row()
        evaluations = [entry for entry in self._context.stages() if entry.stage == "evaluate"]
        evaluations.sort(key=lambda entry: entry.iteration or 0)
        ends = [*evaluations[:1], *evaluations[1:][-1:]]
        publish_summary(self._context.run.name, stored_rows(self._context.store, ends), self.rows)

    @cached_property
    def _earlier_rows(self) -> list[IterationRow]:
        """The newest rows before those of this process."""
        first = self.rows[0].iteration
        earlier = range(max(0, first - MOST_ROWS), first)
        entries = [entry for entry in self._context.stages() if (entry.iteration or 0) in earlier]
        return stored_rows(self._context.store, entries)

    def _finish_row(self) -> None:
        if self._outcomes:
            self.rows.append(iteration_row(self._outcomes[-1].iteration or 0, self._outcomes))
            self._outcomes = []

    def _tell_and_retry(self, stage: str) -> Callable[[Task[..., Any], TaskRun, State[Any]], bool]:
        def passes_by(_task: Task[..., Any], _task_run: TaskRun, state: State[Any]) -> bool:
            error = state.data
            if not isinstance(error, EngineError | StoreError):
                return False
            self._context.listener.warn(f"{stage} failed and is tried again: {error}")
            return True

        return passes_by


def call_as_flow(name: str, run_name: str, body: Callable[[], T], parameters: dict[str, Any]) -> T:
    """Call `body` as a flow run and return what it returns.

    `parameters` are only shown. What `body` raises is raised again; a flow run whose body raised
    `Interrupted` ends as cancelled instead of failed.
    """

    def wrapped(**parameters: Any) -> Any:
        try:
            return body()
        except Interrupted:
            return Cancelled(message="Asked to stop; what was committed is kept")

    # One worker: the embedded engine is one policy in this process, and two threads would share its
    # cores and its cache. Stages that are called, not mapped, run in the flow's own thread.
    shards: Any = ThreadPoolTaskRunner(max_workers=1)
    run: Callable[..., T] = Flow(wrapped, name=name, flow_run_name=run_name, task_runner=shards)
    try:
        return run(**parameters)
    except CancelledRun:
        raise Interrupted from None
