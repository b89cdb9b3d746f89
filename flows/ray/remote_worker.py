"""The driver's end of a worker on some node."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError

from erl_pipeline.plan.job import StageJob
from erl_pipeline.plan.listener import Listener
from erl_pipeline.plan.runner import WorkerDied
from flows.places import NoWorkerLeft
from flows.ray.actor import LINE
from flows.ray.deaths import DEATHS, reason
from flows.ray.invitation import Invitation
from flows.ray.kept_nodes import KeptNodes, Loan, NodeLost
from flows.ray.nodes import ClusterNode
from flows.stage_answers import Computed, FromWorker, Told
from storage.artifacts.manifest import Manifest

if TYPE_CHECKING:
    from ray.actor import ActorHandle

_LOOK_SECONDS = 0.1
_END_SECONDS = 60.0


class RemoteWorker:
    """A worker that has answered, with its node. Its stages borrow `kept` nodes for their trainings."""

    def __init__(self, actor: ActorHandle, node: ClusterNode, kept: KeptNodes) -> None:
        self.actor = actor
        self.node = node
        self._kept = kept

    def compute(self, job: StageJob, listener: Listener, stop: threading.Event) -> Manifest:
        """Have a stage computed. Raises what the stage raised, and WorkerDied if process or node are gone, or
        another node with which the stage trained."""
        try:
            with self._kept.loan(job.planned.title, listener) as loan:
                return self._compute(job, loan, listener, stop)
        except DEATHS as error:
            raise WorkerDied(f"the worker on node {self.node.address} is gone: {reason(error)}") from error
        except NodeLost as error:
            self.kill()
            raise WorkerDied(str(error)) from error

    def _compute(self, job: StageJob, loan: Loan, listener: Listener, stop: threading.Event) -> Manifest:
        asked_to_stop = False
        try:
            messages = self.actor.compute.options(num_returns="streaming").remote(job)
            while True:
                ready, _ = ray.wait([messages], timeout=_LOOK_SECONDS)
                if ready:
                    message: FromWorker | Invitation = ray.get(next(messages))
                    if isinstance(message, Told):
                        message.tell(listener)
                    elif isinstance(message, Computed):
                        return message.manifest
                    elif isinstance(message, Invitation):
                        loan.ask(message)
                    else:
                        raise message.error
                elif stop.is_set() and not asked_to_stop:
                    asked_to_stop = True
                    self.actor.stop.options(concurrency_group=LINE).remote()
                if loan.look():
                    self.actor.lend.options(concurrency_group=LINE).remote()
        except (*DEATHS, NodeLost, NoWorkerLeft):
            # A worker that only cannot be reached might still compute. What it commits would be valid, but it
            # would keep its node busy. One without the nodes of its trainer would wait for them.
            self.kill()
            raise

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
