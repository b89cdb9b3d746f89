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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from erl_pipeline.plan.runner import StageJob
    from erl_pipeline.plan.stage import Resources
    from flows.ray.kept_nodes import InvitedNodes
    from flows.ray.nodes import NodeReport

LINE = "line"
"""The concurrency group of `stop` and `lend`: its own thread is free while a stage is computed."""


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
        self._nodes: InvitedNodes | None = None

    def look(self, question: Mapping[str, Any]) -> NodeReport:
        """The answer to a `NodeQuestion`, given as plain values. Raises ImportError without the project."""
        from flows.ray.nodes import NodeQuestion, look

        return look(NodeQuestion(**question))

    def clock(self) -> float:
        """Seconds since the epoch by this node's clock."""
        return time.time()

    def compute(self, job: StageJob) -> Iterator[Any]:
        """Compute a stage in a thread, and yield what it reports: calls of a listener, as lists, invitations
        of other nodes, and at last the manifest of its artifact. Raises what the stage raises."""
        from erl_pipeline.garbage import search_seldom

        search_seldom()
        from erl_pipeline.plan.runner import compute
        from erl_pipeline.plan.stage import Resources, StageProgress
        from flows.ray.kept_nodes import InvitedNodes
        from flows.stage_reports import CallsPassedOn, sent_whole
        from storage.artifacts.manifest import Manifest

        said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        if self._resources is None or self._nodes is None:
            self._nodes = InvitedNodes(said.put)
            self._resources = Resources(job.worker, self._stop, other_nodes=self._nodes)
        self._nodes.send = said.put
        resources = self._resources
        listener = CallsPassedOn(lambda what, arguments: said.put([what, *arguments]))

        def computed() -> None:
            try:
                with sent_whole():
                    progress = StageProgress(job.planned.title, listener, self._stop)
                    said.put(compute(job, resources, progress))
            except Exception as error:  # It is raised below.
                said.put(error)

        computing = threading.Thread(target=computed, name="stage")
        computing.start()
        message = None
        while not isinstance(message, Manifest):
            message = said.get()
            if isinstance(message, Exception):
                raise message
            yield message
        computing.join()

    def lend(self) -> None:
        """The nodes that the stage at work has invited are free, and have been called."""
        if self._nodes is not None:
            self._nodes.lent.set()

    def take_part(self, part: Callable[[], str]) -> str:
        """Take part in the training of a stage on another node; returns how that ended."""
        return part()

    def stop(self) -> None:
        """Ask the stage at work to stop, since the run was asked to."""
        self._stop.set()

    def close(self) -> None:
        """End the models and servers that are kept between stages."""
        if self._resources is not None:
            self._resources.close()
