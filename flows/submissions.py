"""Stages on their way from the thread of a run to that of its Prefect flow."""

import queue
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from erl_pipeline.config.base import Settings
from erl_pipeline.plan.runner import Made, RunnerCall, StageJob
from erl_pipeline.plan.stage import StageOutcome
from flows.places import StagePool
from storage.errors import ConfigError


class TaskOptions(Settings):
    """What Prefect does with the task of a stage; no artifact depends on it."""

    timeout_seconds: float | None = Field(default=None, gt=0.0)
    """The stage is asked to stop after this many seconds, and the run ends with an error."""
    retry_delay_seconds: tuple[Annotated[float, Field(ge=0.0, le=86400.0)], ...] | None = Field(
        default=None, max_length=50
    )
    """How long to wait before Prefect runs a stage again that failed for a reason that can pass: an engine
    or a store that does not answer. One number for each retry; by default those of the stage."""
    tags: tuple[str, ...] = ()
    """Tags of the task. Prefect's limits apply to tags, such as `prefect concurrency-limit create gpu 1`,
    on a server that keeps running (`PREFECT_API_URL`)."""


@dataclass(frozen=True)
class Submission:
    """A stage that is to be computed, and who waits for its artifact."""

    job: StageJob
    result: Future[Made] = field(default_factory=Future)


@dataclass(frozen=True)
class Work:
    """What one flow run has done so far."""

    computed: Mapping[str, int]
    reused: int
    seconds: float


class Submissions:
    """The stages that a run has computed by its flow, and what the flow has to know of the run.

    Args:
        options: by the names of stages.

    Raises ConfigError for options of a stage that the run's plan does not have.
    """

    def __init__(self, call: RunnerCall, pool: StagePool, options: Mapping[str, TaskOptions]) -> None:
        _require_known(options, call.stages)
        self.call = call
        self.pool = pool
        self.options = options
        self.ready = threading.Event()
        """Set when stages can be begun, or when it is known that the flow run cannot begin."""
        self.changed = 0.0
        """When the ledger was last written, by `time.monotonic()`."""
        self.error: BaseException | None = None
        """How the run ended."""
        self._queue: queue.SimpleQueue[Submission | None] = queue.SimpleQueue()
        self._computed: Counter[str] = Counter()
        self._reused, self._seconds = 0, 0.0

    def put(self, job: StageJob) -> Future[Made]:
        """Have a stage computed."""
        submission = Submission(job)
        self._queue.put(submission)
        return submission.result

    def end(self, error: BaseException | None) -> None:
        """The run has ended: nothing follows."""
        self.error = error
        self._queue.put(None)

    def take(self) -> Submission | None:
        """The next stage to compute, which is waited for; None at the end of the run, as often as asked."""
        submission = self._queue.get()
        if submission is None:
            self._queue.put(None)
        return submission

    def refuse(self, error: BaseException) -> None:
        """Let what was put, and not taken, end with this error."""
        while not self._queue.empty():
            if waiting := self._queue.get():
                waiting.result.set_exception(error)

    def finished(self, outcome: StageOutcome) -> None:
        """Count an artifact that the flow run computed or reused."""
        self.changed = time.monotonic()
        if outcome.reused:
            self._reused += 1
            return
        self._computed[outcome.stage] += 1
        self._seconds += outcome.seconds

    def work(self) -> Work:
        """What was done so far."""
        return Work(self._computed, self._reused, self._seconds)


def _require_known(options: Mapping[str, TaskOptions], stages: frozenset[str]) -> None:
    if unknown := sorted(set(options) - stages):
        raise ConfigError(
            f"runner.stages: {', '.join(unknown)}: no such stage; the run has {', '.join(sorted(stages))}"
        )
