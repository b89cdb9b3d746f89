"""Computing stages on workers over the nodes of a cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import NodeDiedError
from ray.util.placement_group import remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from erl_pipeline.engines.interface import Interrupted
from erl_pipeline.plan.job import StageJob
from erl_pipeline.plan.runner import RunnerCall, WorkerDied
from flows.ray.connection import ClusterError
from flows.ray.remote_worker import DEATHS, RemoteWorker
from flows.ray.room import set_aside
from flows.ray.settings import RayConfig
from flows.ray.survey import Survey, living_nodes, require_fit, start_actor, survey_of, uri_for_all
from storage.artifacts.manifest import Manifest
from storage.errors import StoreError

if TYPE_CHECKING:
    from flows.ray.node_check import Node, NodeFinding

_LOOK_SECONDS = 0.2
_AGAIN_SECONDS = 1.0
_NODE_SECONDS = 600.0
"""How many seconds a stage waits for a node with enough resources, when all such nodes are gone."""


class RayPool:
    """Workers on the nodes of a cluster. All start, and all nodes are checked, before the first stage.

    Each worker keeps its models and servers to its end. So stages that need a device go only to the first
    `resources.devices` workers, for which GPUs are reserved, and the other workers are kept for stages that
    need none. A lost worker is replaced on any node with enough resources; until then there is one less.
    """

    def __init__(self, call: RunnerCall, settings: RayConfig) -> None:
        self._call = call
        self._settings = settings
        self._devices = min(call.devices, settings.workers)
        self._worker = replace(call.worker, store_uri=uri_for_all(call.worker.store_uri))
        self._threads = ThreadPoolExecutor(settings.workers, thread_name_prefix="stage")
        self._workers: dict[int, RemoteWorker] = {}
        self._free: list[int] = []
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._replacing: list[threading.Thread] = []
        self._known_nodes: set[str] = set()

    def __enter__(self) -> RayPool:
        self._room = set_aside(self._settings, self._call.devices, self._worker.threads)
        self._start_workers()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._threads.shutdown()
        self._closing.set()
        closing = [(worker, worker.ask_to_close()) for worker in self._workers.values()]
        for worker, answer in closing:
            worker.wait(answer)
        for thread in self._replacing:
            thread.join()
        remove_placement_group(self._room)

    @property
    def workers(self) -> int:
        """How many stages can be computed at the same time by the current workers; 1 without any worker: that
        stage then waits for a node."""
        return max(1, len(self._workers))

    def submit(self, job: StageJob) -> Future[Manifest]:
        """Begin a stage."""
        return self._threads.submit(self._compute, job)

    def _compute(self, job: StageJob) -> Manifest:
        with self._taken(job) as worker:
            return worker.compute(replace(job, worker=self._worker), self._call.listener, self._call.stop)

    @contextmanager
    def _taken(self, job: StageJob) -> Iterator[RemoteWorker]:
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
        """Take an idle worker; the last suitable one, since the first are for stages that need a device."""
        allowed = range(self._devices if job.planned.stage.needs == "device" else self._settings.workers)
        began = time.monotonic()
        with self._changed:
            while not (free := [place for place in self._free if place in allowed]):
                self._changed.wait(_LOOK_SECONDS)
                if self._call.stop.is_set():
                    raise Interrupted
                if any(place in allowed for place in self._workers):
                    began = time.monotonic()
                    continue
                waited = time.monotonic() - began
                self._call.listener.waiting(
                    job.planned.title, "a node of the cluster", waited, "all nodes with room for it are gone"
                )
                if waited > _NODE_SECONDS:
                    raise ClusterError(
                        f"{job.planned.title}: no node of the cluster has room for it any more. Start nodes, "
                        "then run the same command again: what is committed is kept"
                    )
            self._free.remove(max(free))
            return max(free)

    def _give_back(self, place: int) -> None:
        with self._changed:
            self._free.append(place)
            self._changed.notify_all()

    def _lose(self, place: int) -> None:
        """Give up a worker, and also idle workers on nodes that are gone: else a stage could meet one after
        the other, and each would count as a death of its worker."""
        living = {node.id for node in living_nodes()}
        with self._changed:
            gone = [each for each in self._free if self._workers[each].node.id not in living]
            self._free = [each for each in self._free if each not in gone]
            for each in [place, *gone]:
                del self._workers[each]
                thread = threading.Thread(target=self._replace, args=(each,), name="replacing")
                self._replacing.append(thread)
                thread.start()

    def _start_workers(self) -> None:
        actors = {place: self._start(place) for place in range(self._settings.workers)}
        nodes = living_nodes()
        placed = ray.util.placement_group_table(self._room)["bundles_to_node_id"]
        at_node = {str(node_id): actors[place] for place, node_id in placed.items()}
        with self._survey() as survey:
            findings = survey.ask(nodes, at_node)
        require_fit(findings)
        for warning in _differences(findings):
            self._call.listener.warn(warning)
        self._known_nodes = {node.id for node in nodes}
        by_id = {node.id: node for node in nodes}
        for place, actor in actors.items():
            self._enter(place, RemoteWorker(actor, by_id[str(placed[place])]))

    def _enter(self, place: int, worker: RemoteWorker) -> None:
        with self._changed:
            self._workers[place] = worker
        self._give_back(place)

    def _survey(self) -> AbstractContextManager[Survey]:
        return survey_of(self._worker.store_uri, self._call.packages)

    def _start(self, place: int) -> Any:
        bundle = self._room.bundle_specs[place]
        return start_actor(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            memory=bundle.get("memory"),
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._room, place),
        )

    def _replace(self, place: int) -> None:
        """Start a lost worker again, as soon as a node has enough resources, however long that takes."""
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
                self._enter(place, RemoteWorker(actor, node))
                return
            self._call.listener.warn(f"node {node.address} joined and is not used: {'; '.join(problems)}")
            break
        ray.kill(actor)

    def _node_of(self, place: int) -> Node:
        """The node on which a worker's bundle is placed. Raises NodeDiedError if the node is gone."""
        node_id = str(ray.util.placement_group_table(self._room)["bundles_to_node_id"][place])
        living = {node.id: node for node in living_nodes()}
        if node_id not in living:
            raise NodeDiedError(f"node {node_id} is gone")
        return living[node_id]

    def _problems_of(self, node: Node, actor: Any) -> tuple[str, ...]:
        """The problems of a node that was not examined before; none for a node that was."""
        if node.id in self._known_nodes:
            return ()
        with self._survey() as survey:
            (finding,) = survey.ask([node], {node.id: actor})
        if not finding.problems:
            self._known_nodes.add(node.id)
        return finding.problems


def _differences(findings: list[NodeFinding]) -> list[str]:
    """Warnings about differences between nodes that are no reason to refuse them."""
    processors = {each.report.processor for each in findings if each.report is not None}
    if len(processors) < 2:
        return []
    return [
        f"the nodes have different processors ({', '.join(sorted(processors))}): artifacts are reproduced to "
        "the byte only on the same kind"
    ]
