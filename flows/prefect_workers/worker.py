"""The driver's end of a worker that has dialled in."""

from __future__ import annotations

import threading

from erl_pipeline.plan.job import StageJob
from erl_pipeline.plan.listener import Listener
from erl_pipeline.plan.runner import WorkerDied
from flows.driver_line import DriverLine, LineBroken
from flows.prefect_workers.questions import begin
from flows.prefect_workers.recruiting import Arrival
from storage.artifacts.manifest import Manifest


class DialledInWorker:
    """A worker that is fit and waits for stages. Raises NoAnswer when it is gone already."""

    def __init__(self, arrival: Arrival) -> None:
        begin(arrival.line)
        self.asked = arrival.asked
        self._node = arrival.finding.node
        self._line = DriverLine(arrival.line)

    def __str__(self) -> str:
        return f"the worker on {self._node.address} (flow run {self.asked.name!r})"

    def compute(self, job: StageJob, listener: Listener, stop: threading.Event) -> Manifest:
        """Have a stage computed. Raises what the stage raised, and WorkerDied if the worker is gone."""
        try:
            return self._line.compute(job, listener, stop)
        except LineBroken as error:
            # A worker that only cannot be reached ends as well when it notices.
            self._line.close()
            raise WorkerDied(f"{self} is gone") from error

    def is_gone(self) -> bool:
        """Whether this worker, which is idle, has ended."""
        return self._line.has_ended(0.0)

    def ask_to_close(self) -> None:
        """Ask it to end its models and servers, and then itself."""
        self._line.ask_to_close()

    def await_end(self, seconds: float) -> bool:
        """Wait for the end of its process, at most this long; returns whether it has ended."""
        ended = self._line.has_ended(seconds)
        self._line.close()
        return ended
