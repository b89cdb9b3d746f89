"""Where stages are computed: which workers of a run are idle, who gets the next one, and which are lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from erl_pipeline.plan.runner import RunnerCall, StageJob, WorkerDied, places_for
from storage.errors import Interrupted, PipelineError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from prefect.futures import PrefectFuture
    from prefect.tasks import Task

    from flows.stage_worker import StageWork

WorkerT = TypeVar("WorkerT")

_LOOK_SECONDS = 0.2
_PATIENCE_SECONDS = 600.0
"""How many seconds a stage waits for a worker, when all suitable ones are lost."""


class StagePlace(Protocol):
    """Where one stage is computed at a time."""

    @property
    def begun(self) -> bool:
        """Whether the stage has begun, as far as `look` has heard: its task may still wait for a slot."""
        ...

    @property
    def ends_unbegun(self) -> bool:
        """Whether a stage that has not begun ends by itself when the run is asked to stop."""
        ...

    def work(self, job: StageJob) -> StageWork:
        """The computation of a stage, which its task is given."""
        ...

    def submit(self, task: Task[Any, Any], **options: Any) -> PrefectFuture[Any]:
        """Have a task runner of Prefect run the task; the options are those of its `submit`."""
        ...

    def look(self) -> None:
        """Pass on what the stage has reported; called again and again while it is computed, and at its end.

        Raises WorkerDied."""
        ...

    def final_state(self, future: PrefectFuture[Any]) -> Any:
        """The state of a future that is done. Raises WorkerDied if the process has ended."""
        ...


class StagePool(Protocol):
    """Places at which stages are computed."""

    @property
    def workers(self) -> int:
        """How many stages can be computed at the same time."""
        ...

    @property
    def shares_files(self) -> bool:
        """Whether stages can write into a folder of the driver's machine."""
        ...

    def taken(self, job: StageJob) -> AbstractContextManager[StagePlace]:
        """A free place for a stage, inside this context, which ends with WorkerDied if the place is lost.

        Raises Interrupted when the run was asked to stop, and NoWorkerLeft.
        """
        ...


class NoWorkerLeft(PipelineError):
    """Every worker that could compute a stage is lost, and none came in its place."""


@dataclass(frozen=True)
class Loss:
    """How messages speak of lost workers: what a stage waits for, why, and what the user can do."""

    awaited: str
    reason: str
    advice: str

    def require_patience(self, title: str, waited: float) -> None:
        """Raise NoWorkerLeft if a stage has waited for too many seconds."""
        if waited > _PATIENCE_SECONDS:
            raise NoWorkerLeft(
                f"{title}: {self.reason}. {self.advice}, then run the same command again: what is committed "
                "is kept"
            )


class Places(Generic[WorkerT]):
    """The workers of a run, each at a numbered place.

    Each worker keeps its models and servers to its end. So stages that need a device go only to the first
    places (`erl_pipeline.plan.runner.places_for`), and the others are kept for stages that need none.

    Args:
        loss: the words for a stage that waits because workers are lost.
        is_gone: whether an idle worker is lost as well; asked when a worker died. Else a stage could meet one
            lost worker after the other, and each would count as a death of its worker.
        replace: begins to start a worker again at a place.
    """

    def __init__(
        self,
        call: RunnerCall,
        count: int,
        loss: Loss,
        is_gone: Callable[[WorkerT], bool],
        replace: Callable[[int], None],
    ) -> None:
        self._call = call
        self._count = count
        self._loss = loss
        self._is_gone = is_gone
        self._replace = replace
        self._workers: dict[int, WorkerT] = {}
        self._idle: list[int] = []
        self._changed = threading.Condition()

    @property
    def workers(self) -> list[WorkerT]:
        """The workers that are not lost."""
        with self._changed:
            return list(self._workers.values())

    def enter(self, place: int, worker: WorkerT) -> None:
        """Put a worker, which is idle, at a place."""
        with self._changed:
            self._workers[place] = worker
        self._give_back(place)

    @contextmanager
    def taken(self, job: StageJob) -> Iterator[WorkerT]:
        """An idle worker for a stage, inside this context; the last suitable one, since the first are for
        stages that need a device. If the context ends with WorkerDied, the worker is lost, and replaced.

        Raises Interrupted when the run was asked to stop, and NoWorkerLeft.
        """
        place, lost = self._take(job), False
        try:
            yield self._workers[place]
        except WorkerDied:
            lost = True
            raise
        finally:
            if lost:
                self._lose(place)
            else:
                self._give_back(place)

    def _take(self, job: StageJob) -> int:
        allowed = places_for(job.planned.stage.needs, self._call.resources) or range(self._count)
        began = time.monotonic()
        with self._changed:
            while not (free := [place for place in self._idle if place in allowed]):
                self._changed.wait(_LOOK_SECONDS)
                if self._call.stop.is_set():
                    raise Interrupted
                if any(place in allowed for place in self._workers):
                    began = time.monotonic()
                    continue
                waited = time.monotonic() - began
                title, loss = job.planned.title, self._loss
                self._call.listener.waiting(title, loss.awaited, waited, loss.reason)
                loss.require_patience(title, waited)
            self._idle.remove(max(free))
            return max(free)

    def _give_back(self, place: int) -> None:
        with self._changed:
            self._idle.append(place)
            self._changed.notify_all()

    def _lose(self, place: int) -> None:
        with self._changed:  # so that none of the idle workers is taken while it is looked at
            gone = [each for each in self._idle if self._is_gone(self._workers[each])]
            lost = [place, *gone]
            self._idle = [each for each in self._idle if each not in gone]
            for each in lost:
                del self._workers[each]
        for each in lost:
            self._replace(each)
