"""The driver's end of a worker on some node."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import (
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    WorkerCrashedError,
)

from erl_pipeline.plan.job import StageJob
from erl_pipeline.plan.listener import Listener
from erl_pipeline.plan.runner import WorkerDied
from flows.ray.actor import LINE
from flows.ray.nodes import ClusterNode
from flows.stage_answers import Computed, FromWorker, Told
from storage.artifacts.manifest import Manifest

if TYPE_CHECKING:
    from ray.actor import ActorHandle

DEATHS = (RayActorError, ObjectLostError, WorkerCrashedError, NodeDiedError, OutOfMemoryError)
"""What Ray raises when a worker's process or node is gone, or cannot be reached."""

_LOOK_SECONDS = 0.1
_END_SECONDS = 60.0


class RemoteWorker:
    """A worker that has answered, with its node."""

    def __init__(self, actor: ActorHandle, node: ClusterNode) -> None:
        self.actor = actor
        self.node = node

    def compute(self, job: StageJob, listener: Listener, stop: threading.Event) -> Manifest:
        """Have a stage computed. Raises what the stage raised, and WorkerDied if process or node are gone."""
        asked_to_stop = False
        try:
            messages = self.actor.compute.options(num_returns="streaming").remote(job)
            while True:
                ready, _ = ray.wait([messages], timeout=_LOOK_SECONDS)
                if ready:
                    message: FromWorker = ray.get(next(messages))
                    if isinstance(message, Told):
                        message.tell(listener)
                    elif isinstance(message, Computed):
                        return message.manifest
                    else:
                        raise message.error
                elif stop.is_set() and not asked_to_stop:
                    asked_to_stop = True
                    self.actor.stop.options(concurrency_group=LINE).remote()
        except DEATHS as error:
            # A worker that only cannot be reached might still compute. What it commits would be valid, but it
            # would keep its node busy.
            self.kill()
            raise WorkerDied(f"the worker on node {self.node.address} is gone: {_reason(error)}") from error

    def kill(self) -> None:
        """End its process, whatever its state."""
        ray.kill(self.actor)

    def ask_to_close(self) -> Any:
        """Ask it to end its models and servers; pass the result to `wait`."""
        return self.actor.close.remote()

    def wait(self, closing: Any) -> None:
        """Wait until it has ended its models and servers, then end its process."""
        try:
            ray.get(closing, timeout=_END_SECONDS)
        except (*DEATHS, GetTimeoutError):
            pass  # Ray ends its process, and what that has started, in any case.
        self.kill()


def _reason(error: RayError) -> str:
    """The line of Ray's message that gives the reason, without its advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "because" in line] or lines or [type(error).__name__]
    return told[0].partition(". ")[0].rstrip(".")
