"""The Ray actor of a worker: the code that runs in its process on some node.

Ray sends the class by value, so it also runs on a node that lacks this project or has another version of it,
and can report that. It imports the project only within its methods, once the driver's `sys.path` is set.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from erl_pipeline.plan.job import StageJob
    from erl_pipeline.plan.resources import Resources
    from flows.nodes.report import NodeReport
    from flows.stage_answers import FromWorker

LINE = "line"
"""The concurrency group of `stop`: it has its own thread, which is free while a stage is computed."""


class StageActor:
    """Computes stages one after the other, and keeps models and servers between them.

    Args:
        path: the driver's `sys.path`; folders that this node lacks have no effect.
        folder: the driver's working folder, for relative file names; not used if this node lacks it.
    """

    def __init__(self, path: Sequence[str], folder: str) -> None:
        own = [entry for entry in sys.path if entry not in path]
        sys.path[:] = [*path, *own]
        if os.path.isdir(folder):
            os.chdir(folder)
        self._stop = threading.Event()
        self._resources: Resources | None = None

    def look(self, question: Mapping[str, Any]) -> NodeReport:
        """The answer to a `Question`, given as plain values. Raises ImportError without the project."""
        from flows.nodes.report import Question, look

        return look(Question(**question))

    def clock(self) -> float:
        """Seconds since the epoch by this node's clock."""
        return time.time()

    def compute(self, job: StageJob) -> Iterator[FromWorker]:
        """Compute a stage in a thread, and yield its messages: progress, then the manifest or the error."""
        from erl_pipeline.plan.resources import Resources
        from flows.stage_answers import Computed, Failed, answer

        if self._resources is None:
            self._resources = Resources(job.worker, self._stop)
        said: queue.SimpleQueue[FromWorker] = queue.SimpleQueue()
        resources = self._resources
        computing = threading.Thread(
            target=lambda: said.put(answer(job, resources, said.put, self._stop)), name="stage"
        )
        computing.start()
        while True:
            message = said.get()
            yield message
            if isinstance(message, Computed | Failed):
                break
        computing.join()

    def stop(self) -> None:
        """Ask the stage at work to stop, since the run was asked to."""
        self._stop.set()

    def close(self) -> None:
        """End the models and servers that are kept between stages."""
        if self._resources is not None:
            self._resources.close()
