"""Computing stages on workers over the nodes of a cluster."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import ray
from prefect_ray.context import remote_options
from prefect_ray.task_runners import RayTaskRunner
from ray.exceptions import GetTimeoutError, NodeDiedError
from ray.util.placement_group import remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from erl_pipeline.plan.runner import RunnerCall, StageJob, WorkerDied
from flows.places import Loss, NoWorkerLeft, Places
from flows.ray.actor import LINE
from flows.ray.actor_work import ActorWork
from flows.ray.cluster import set_aside
from flows.ray.kept_nodes import DEATHS, KeptNodes, Loan, NodeLost
from flows.ray.nodes import (
    ClusterNode,
    living_nodes,
    processor_warning,
    require_fit,
    require_one_kind_of_gpu,
)
from flows.ray.settings import RayConfig
from flows.ray.survey import ask, start_actor, survey_of, uri_for_all
from flows.stage_reports import CallsPassedOn, Reports
from storage.errors import StoreError

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

    ends_unbegun = False

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

    @property
    def begun(self) -> bool:
        """Whether the stage has begun, as far as its reports were read."""
        return self._reports.begun

    def submit(self, task: Task[Any, Any], **options: Any) -> PrefectFuture[Any]:
        """Have Ray run the task on the driver's machine; it waits for the actor."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        with remote_options(num_cpus=0, max_retries=0, scheduling_strategy=here):
            future: PrefectFuture[Any] = self._runner.submit(task, **options)
        return future

    def look(self) -> None:
        """Pass on what the stage has reported, lend it the nodes that it invites, and tell it to stop."""
        if self._call.stop.is_set():
            self._stop.touch()
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


_LOOK_SECONDS = 0.2
_AGAIN_SECONDS = 1.0
_LOSS = Loss("a node of the cluster", "all nodes with room for it are gone", "Start nodes")
_LOSS_OF_KEPT = Loss("the other nodes of the trainer", "some are gone, and no node has room", "Start nodes")


class RayPool:
    """Workers on the nodes of a cluster. All start, and all nodes are checked, before the first stage.

    GPUs are reserved for the first workers (`erl_pipeline.plan.runner.places_for`). A lost worker is replaced
    on any node with enough resources; until then there is one less. At the places after those of the workers
    are the nodes that are kept for trainings.
    """

    shares_files = False

    def __init__(self, call: RunnerCall, settings: RayConfig, folder: Path) -> None:
        self._call = call
        self._store_uri = uri_for_all(call.worker.store_uri)
        self._settings = settings
        self._folder = folder
        self._known_nodes: set[str] = set()
        self._closing = threading.Event()
        self._replacing: list[threading.Thread] = []
        self._runner: RayTaskRunner[Any] = RayTaskRunner()
        self._places: Places[RemoteWorker] = Places(
            call, settings.workers, _LOSS, self._is_gone, self._begin_to_replace
        )
        self._kept = KeptNodes(call.nodes.count, _LOSS_OF_KEPT, self._begin_to_replace)

    def __enter__(self) -> RayPool:
        (self._folder / "stop").unlink(missing_ok=True)  # of an earlier process
        self._runner.__enter__()
        self._room = set_aside(self._settings, self._call.resources, self._call.nodes)
        self._start_workers()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing.set()
        closing = [(worker, worker.ask_to_close()) for worker in self._places.workers]
        for worker, answer in closing:
            worker.wait(answer)
        for thread in self._replacing:
            thread.join()
        self._kept.kill()
        remove_placement_group(self._room)
        self._runner.__exit__(kind, error, traceback)

    @property
    def workers(self) -> int:
        """How many stages can be computed at the same time by the current workers; 1 without any worker: that
        stage then waits for one."""
        return max(1, len(self._places.workers))

    @contextmanager
    def taken(self, job: StageJob) -> Iterator[RemoteWorker]:
        """An idle worker for a stage, inside this context."""
        with self._places.taken(job) as worker, worker.borrowing(job):
            yield worker

    def _is_gone(self, worker: RemoteWorker) -> bool:
        return worker.node.id not in {node.id for node in living_nodes()}

    def _begin_to_replace(self, place: int) -> None:
        thread = threading.Thread(target=self._replace, args=(place,), name="replacing")
        self._replacing.append(thread)
        thread.start()

    def _start_workers(self) -> None:
        actors = {place: self._start(place) for place in range(self._room.bundle_count)}
        nodes = living_nodes()
        if self._call.worker.deterministic:
            require_one_kind_of_gpu(nodes)
        placed = ray.util.placement_group_table(self._room)["bundles_to_node_id"]
        at_node = {str(node_id): actors[place] for place, node_id in placed.items()}
        with survey_of(self._store_uri, self._call.packages) as survey:
            findings = ask(survey, nodes, at_node)
        require_fit(findings, "runner.address: the cluster cannot compute this run:")
        if warning := processor_warning(findings):
            self._call.listener.warn(warning)
        self._known_nodes = {node.id for node in nodes}
        by_id = {node.id: node for node in nodes}
        for place, actor in actors.items():
            self._enter(place, actor, by_id[str(placed[place])])

    def _enter(self, place: int, actor: Any, node: ClusterNode) -> None:
        if place < self._settings.workers:
            reports, stop = self._folder / f"reports-{place}.jsonl", self._folder / "stop"
            self._places.enter(
                place, RemoteWorker(actor, node, self._kept, self._runner, self._call, reports, stop)
            )
        else:
            self._kept.enter(place, actor, node)

    def _start(self, place: int) -> Any:
        bundle = self._room.bundle_specs[place]
        return start_actor(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            memory=bundle.get("memory"),
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._room, place),
        )

    def _replace(self, place: int) -> None:
        while True:
            actor = self._start(place)
            ready = actor.clock.remote()
            while not self._closing.is_set() and not ray.wait([ready], timeout=_LOOK_SECONDS)[0]:
                continue
            if self._closing.is_set():
                break
            try:
                ray.get(ready)
                node = self._node_of(place)
                problems = self._problems_of(node, actor)
            except (*DEATHS, StoreError):  # Its node went as well, or the store is away.
                ray.kill(actor)
                if self._closing.wait(_AGAIN_SECONDS):
                    return
                continue
            if not problems:
                self._enter(place, actor, node)
                return
            self._call.listener.warn(f"node {node.address} joined and is not used: {'; '.join(problems)}")
            break
        ray.kill(actor)

    def _node_of(self, place: int) -> ClusterNode:
        """The node on which a worker's bundle is placed. Raises NodeDiedError if the node is gone."""
        node_id = str(ray.util.placement_group_table(self._room)["bundles_to_node_id"][place])
        living = {node.id: node for node in living_nodes()}
        if node_id not in living:
            raise NodeDiedError(f"node {node_id} is gone")
        return living[node_id]

    def _problems_of(self, node: ClusterNode, actor: Any) -> tuple[str, ...]:
        """The problems of a node that was not examined before; none for a node that was."""
        if node.id in self._known_nodes:
            return ()
        with survey_of(self._store_uri, self._call.packages) as survey:
            (finding,) = ask(survey, [node], {node.id: actor})
        if not finding.problems:
            self._known_nodes.add(node.id)
        return finding.problems
