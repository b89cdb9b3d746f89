"""The driver's end of a worker on some node."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from prefect_ray.context import remote_options
from prefect_ray.task_runners import RayTaskRunner
from ray.exceptions import GetTimeoutError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from erl_pipeline.plan.job import StageJob
from erl_pipeline.plan.runner import RunnerCall, WorkerDied
from flows.places import NoWorkerLeft
from flows.ray.actor import LINE
from flows.ray.actor_work import DEATHS, ActorWork
from flows.ray.kept_nodes import KeptNodes, Loan, NodeLost
from flows.ray.nodes import ClusterNode
from flows.stage_reports import CallsPassedOn, Reports

if TYPE_CHECKING:
    from prefect.futures import PrefectFuture
    from prefect.tasks import Task
    from ray.actor import ActorHandle

_END_SECONDS = 60.0


class RemoteWorker:
    """A worker that has answered, with its node. Its stages borrow `kept` nodes for their trainings.

    Args:
        runner: runs the tasks of stages.
        reports: the file over which stages report.
        stop: the file that asks them to stop.
    """

    def __init__(
        self,
        actor: ActorHandle,
        node: ClusterNode,
        kept: KeptNodes,
        runner: RayTaskRunner[Any],
        call: RunnerCall,
        reports: Path,
        stop: Path,
    ) -> None:
        self.actor = actor
        self.node = node
        self._kept = kept
        self._runner = runner
        self._call = call
        self._told = reports
        self._stop = stop

    @contextmanager
    def borrowing(self, job: StageJob) -> Iterator[None]:
        """Compute a stage inside this context. Raises WorkerDied if another node is gone with which the stage
        trained. A worker that only cannot be reached might still compute; it is ended, since it would keep
        its node busy, or wait for the nodes of its trainer."""
        try:
            with self._kept.loan(job.planned.title, self._call.listener) as self._loan:
                yield
        except NodeLost as error:
            self.kill()
            raise WorkerDied(str(error)) from error
        except (WorkerDied, NoWorkerLeft):
            self.kill()
            raise

    def work(self, job: StageJob) -> ActorWork:
        """The computation of a stage by the actor."""
        self._reports = Reports(self._told)
        return ActorWork(job, self.actor, self.node.address, self._told, self._stop)

    def submit(self, task: Task[Any, Any], **options: Any) -> PrefectFuture[Any]:
        """Have Ray run the task on the driver's machine; it waits for the actor."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        with remote_options(num_cpus=0, max_retries=0, scheduling_strategy=here):
            future: PrefectFuture[Any] = self._runner.submit(task, **options)
        return future

    def look(self) -> None:
        """Pass on what the stage has reported, and lend it the nodes that it invites."""
        self._reports.relay(_Relay(self._call, self._loan))
        if self._loan.look():
            self.actor.lend.options(concurrency_group=LINE).remote()

    def final_state(self, future: PrefectFuture[Any]) -> Any:
        """The state of a future that is done."""
        self._reports.close()
        future.wait()
        state = future.state
        if state.is_crashed():
            raise WorkerDied(f"the process of the task has ended: {state.message}")
        return state

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


class _Relay(CallsPassedOn):
    """Passes what a stage reports on to the listener, and its invitations to the loan."""

    def __init__(self, call: RunnerCall, loan: Loan) -> None:
        super().__init__(lambda what, arguments: getattr(call.listener, what)(*arguments))
        self._loan = loan

    def invite(self, invitation: str) -> None:
        """The stage invites the nodes of its trainer."""
        self._loan.ask(ray.cloudpickle.loads(base64.b64decode(invitation)))
