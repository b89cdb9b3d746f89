"""Computing stages on workers of several machines, whatever starts the workers there."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import copy_context
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from erl_pipeline.plan.job import StageJob
from erl_pipeline.plan.listener import Listener
from erl_pipeline.plan.runner import RunnerCall
from flows.nodes.survey import Survey, survey_of, uri_for_all
from flows.places import Loss, Places
from storage.artifacts.manifest import Manifest


class Worker(Protocol):
    """The driver's end of a worker."""

    def compute(self, job: StageJob, listener: Listener, stop: threading.Event) -> Manifest:
        """Have a stage computed. Raises what the stage raised, and WorkerDied if the worker is gone."""
        ...


WorkerT = TypeVar("WorkerT", bound=Worker)


class RemotePool(ABC, Generic[WorkerT]):
    """Workers on several machines. A lost worker is replaced; until then there is one less.

    Args:
        loss: the words for a stage that waits because workers are lost.
    """

    def __init__(self, call: RunnerCall, workers: int, loss: Loss) -> None:
        self._call = call
        self._worker = replace(call.worker, store_uri=uri_for_all(call.worker.store_uri))
        self._places: Places[WorkerT] = Places(call, workers, loss, self._is_gone, self._begin_to_replace)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="stage")
        self._closing = threading.Event()
        self._replacing: list[threading.Thread] = []

    @property
    def workers(self) -> int:
        """How many stages can be computed at the same time by the current workers; 1 without any worker: that
        stage then waits for one."""
        return max(1, len(self._places.workers))

    def submit(self, job: StageJob, listener: Listener, stop: threading.Event) -> Future[Manifest]:
        """Begin a stage, which reports to this listener and ends early when `stop` is set."""
        return self._threads.submit(copy_context().run, self._compute, job, listener, stop)

    @abstractmethod
    def _is_gone(self, worker: WorkerT) -> bool:
        """Whether a worker, which is idle, is lost."""

    @abstractmethod
    def _replace(self, place: int) -> None:
        """Start a lost worker again, however long that takes, unless the pool is closing."""

    def _survey(self) -> AbstractContextManager[Survey]:
        return survey_of(self._worker.store_uri, self._call.packages)

    def _compute(self, job: StageJob, listener: Listener, stop: threading.Event) -> Manifest:
        with self._places.taken(job) as worker:
            return worker.compute(replace(job, worker=self._worker), listener, stop)

    def _begin_to_replace(self, place: int) -> None:
        thread = threading.Thread(target=self._replace, args=(place,), name="replacing")
        self._replacing.append(thread)
        thread.start()
