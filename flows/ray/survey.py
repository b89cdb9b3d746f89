"""The survey of the nodes of a cluster, before a run or on request: an actor on each node answers."""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from erl_pipeline.config.pipeline import NO_NODES_TO_FIND, NodesToFind, ResourcesConfig
from flows.ray.actor import LINE, StageActor
from flows.ray.cluster import connected, set_aside, worker_variables
from flows.ray.nodes import (
    ClusterNode,
    NodeFinding,
    NodeQuestion,
    NodeReport,
    living_nodes,
    look,
    problems_of,
)
from flows.ray.settings import RayConfig
from storage.artifacts.layout import StagingFolder, StoreLayout
from storage.errors import store_errors
from storage.filesystem import StoreRoot, open_root, read_bytes, write_new

if TYPE_CHECKING:
    from ray.actor import ActorHandle

_ANSWER_SECONDS = 90.0
"""How many seconds a node may take to answer."""
_CLOCK_QUESTIONS = 5
_BY_VALUE = threading.Lock()
"""Held while cloudpickle has the actor's module in its list: several lost actors are replaced at once."""


@dataclass(frozen=True)
class NodeSurvey:
    """The question to nodes, and this machine's own report to compare with.

    `folder`: of the files that the survey writes into the store at `root`; without a root none are written.
    `held`: as in `NodeQuestion`.
    """

    root: StoreRoot | None
    store_uri: str
    packages: Sequence[str]
    folder: str
    content: bytes
    held: str
    here: NodeReport

    def question(self, node: ClusterNode) -> NodeQuestion:
        """The question to one node."""
        return NodeQuestion(
            packages=self.packages,
            store_uri=self.store_uri,
            sign=f"{self.folder}/driver",
            content=self.content,
            answer=f"{self.folder}/{node.id}",
            held=self.held,
        )

    def finding(self, node: ClusterNode, report: NodeReport, clock_offset: float) -> NodeFinding:
        """What follows from the answer of a node."""
        problems = list(problems_of(report, self.here, clock_offset, self.store_uri))
        if self.root is not None and not report.store:
            written = read_bytes(self.root, self.root.join(f"{self.folder}/{node.id}"))
            if written != self.content:
                problems.append(
                    f"store {self.store_uri} is not the one that the driver sees: a file that the node wrote "
                    "there cannot be found. Use a folder that every node mounts at the same path, or a bucket"
                )
        return NodeFinding(node, report, clock_offset, tuple(problems))


def uri_for_all(store_uri: str) -> str:
    """The store's URI as nodes can use it, whatever their working folder: local paths become absolute."""
    root = open_root(store_uri)
    return os.path.abspath(root.path) if root.local else store_uri


@contextmanager
def survey_of(store_uri: str, packages: Sequence[str]) -> Iterator[NodeSurvey]:
    """A survey, inside this context; the files that it writes into the store are removed afterwards.

    Args:
        store_uri: as `uri_for_all` gives it; empty for no store.
        packages: those whose code the run depends on.

    Raises StoreError when this machine cannot write to the store.
    """
    content = secrets.token_hex(16).encode()
    folder = f".cluster-{secrets.token_hex(8)}"
    here = look(NodeQuestion(packages, "", "", content, ""))
    root = open_root(store_uri) if store_uri else None
    if root is not None:
        write_new(root, root.join(f"{folder}/driver"), content)
    held = StagingFolder(StoreLayout(root).staging) if root is not None and root.local else None
    try:
        name = "" if held is None else held.path.name
        yield NodeSurvey(root, store_uri, packages, folder, content, name, here)
    finally:
        if held is not None:
            held.release()
        if root is not None:
            with store_errors("remove", root.join(folder)), suppress(FileNotFoundError):
                root.fs.rm(root.join(folder), recursive=True)


def start_actor(**options: Any) -> ActorHandle:
    """Start a `StageActor` with Ray's options. Ray never restarts it: the plan's walk does all retries."""
    import ray
    from ray import cloudpickle

    from flows.ray import actor

    with _BY_VALUE:
        cloudpickle.register_pickle_by_value(actor)
        try:
            remote = ray.remote(max_restarts=0, max_task_retries=0, concurrency_groups={LINE: 1}, **options)(
                StageActor
            )
            return remote.remote([os.path.abspath(entry) for entry in sys.path], os.getcwd())
        finally:
            cloudpickle.unregister_pickle_by_value(actor)


def ask(
    survey: NodeSurvey, nodes: Iterable[ClusterNode], actors: Mapping[str, ActorHandle]
) -> list[NodeFinding]:
    """Ask all nodes at the same time; the findings in the order of the nodes.

    Args:
        actors: node's id -> an actor that already runs there; on other nodes one is started for this.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked = []
    for node in nodes:
        at = NodeAffinitySchedulingStrategy(node.id, soft=False)
        actor = actors.get(node.id) or start_actor(num_cpus=0, scheduling_strategy=at)
        asked.append((node, actor, actor.look.remote(asdict(survey.question(node)))))
    ray.wait([answer for *_, answer in asked], num_returns=len(asked), timeout=_ANSWER_SECONDS)
    findings = [_finding(survey, node, actor, answer) for node, actor, answer in asked]
    for node, actor, _ in asked:
        if node.id not in actors:
            ray.kill(actor)
    return findings


def _finding(survey: NodeSurvey, node: ClusterNode, actor: ActorHandle, answer: Any) -> NodeFinding:
    import ray
    from ray.exceptions import GetTimeoutError, RayError, RayTaskError

    try:
        return survey.finding(node, ray.get(answer, timeout=0), _clock_offset(actor))
    except GetTimeoutError:
        problem = f"gave no answer within {_ANSWER_SECONDS:.0f} s: see Ray's logs there"
    except RayTaskError as error:
        problem = f"erl-pipeline cannot be used there ({error.cause}): install the same version on both"
    except RayError as error:
        problem = f"no process can be started there: {str(error).strip().splitlines()[-1]}"
    return NodeFinding(node, None, 0.0, (problem,))


def _clock_offset(actor: ActorHandle) -> float:
    """Seconds by which the clock of the actor's node is ahead, measured by the fastest of several calls."""
    import ray

    asked = []
    for _ in range(_CLOCK_QUESTIONS):
        before = time.time()
        told: float = ray.get(actor.clock.remote(), timeout=_ANSWER_SECONDS)
        after = time.time()
        asked.append((after - before, told - (before + after) / 2))
    return min(asked)[1]


def examine(
    settings: RayConfig,
    store_uri: str,
    packages: Sequence[str] = (),
    resources: ResourcesConfig | None = None,
    to_find: NodesToFind = NO_NODES_TO_FIND,
) -> list[NodeFinding]:
    """What each node of the cluster at `settings.address` has, and what is wrong with it.

    Args:
        packages: those of the plug-ins that the run uses.
        resources: of the run, to find out whether they can be reserved; None to reserve nothing.
        to_find: the other nodes of the run's trainer, and its processes on each node.

    Raises ConfigError when there is no cluster, or when it could not reserve what the workers need.
    """
    threads = 1 if resources is None else resources.threads
    with connected(settings.address, worker_variables(threads)):
        from ray.util.placement_group import remove_placement_group

        if resources is not None:
            remove_placement_group(set_aside(settings, resources, to_find))
        with survey_of(uri_for_all(store_uri), packages) as survey:
            return ask(survey, living_nodes(), {})
