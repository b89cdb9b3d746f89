"""A survey of the nodes of a cluster, before any of them computes."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from flows.ray.actor import LINE, StageActor
from flows.ray.node_check import Node, NodeFinding, problems_of
from flows.ray.node_report import NodeReport, Question, look
from storage.errors import ConfigError
from storage.filesystem import StoreRoot, open_root, read_bytes, store_errors, write_new

if TYPE_CHECKING:
    from ray.actor import ActorHandle

_ANSWER_SECONDS = 90.0
"""How many seconds a node may take to start a process and answer."""
_CLOCK_QUESTIONS = 5


def living_nodes() -> list[Node]:
    """The living nodes of the cluster, sorted by address."""
    import ray

    found = [
        Node(
            id=str(node["NodeID"]),
            address=str(node["NodeManagerAddress"]),
            cpus=node["Resources"].get("CPU", 0.0),
            gpus=node["Resources"].get("GPU", 0.0),
            memory_bytes=node["Resources"].get("memory", 0.0),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(found, key=lambda node: (node.address, node.id))


def start_actor(**options: Any) -> ActorHandle:
    """Start a `StageActor` with Ray's options. Ray never restarts it: the plan's walk does all retries."""
    import ray
    from ray import cloudpickle

    from flows.ray import actor

    cloudpickle.register_pickle_by_value(actor)
    try:
        remote = ray.remote(max_restarts=0, max_task_retries=0, concurrency_groups={LINE: 1}, **options)(
            StageActor
        )
        return remote.remote([os.path.abspath(entry) for entry in sys.path], os.getcwd())
    finally:
        cloudpickle.unregister_pickle_by_value(actor)


@dataclass(frozen=True)
class Survey:
    """The questions to nodes, and this machine's own report to compare with."""

    root: StoreRoot | None
    store_uri: str
    packages: Sequence[str]
    folder: str
    content: bytes
    here: NodeReport

    def ask(self, nodes: Iterable[Node], actors: Mapping[str, ActorHandle]) -> list[NodeFinding]:
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
            asked.append((node, actor, actor.look.remote(asdict(self._question(node)))))
        ray.wait([answer for *_, answer in asked], num_returns=len(asked), timeout=_ANSWER_SECONDS)
        findings = [self._finding(node, actor, answer) for node, actor, answer in asked]
        for node, actor, _ in asked:
            if node.id not in actors:
                ray.kill(actor)
        return findings

    def _question(self, node: Node) -> Question:
        return Question(
            packages=self.packages,
            store_uri=self.store_uri,
            sign=f"{self.folder}/driver",
            content=self.content,
            answer=f"{self.folder}/{node.id}",
        )

    def _finding(self, node: Node, actor: ActorHandle, answer: Any) -> NodeFinding:
        import ray
        from ray.exceptions import GetTimeoutError, RayError, RayTaskError

        try:
            report: NodeReport = ray.get(answer, timeout=0)
            offset = _clock_offset(actor)
        except GetTimeoutError:
            return NodeFinding(
                node, None, 0.0, (f"gave no answer within {_ANSWER_SECONDS:.0f} s: see Ray's logs there",)
            )
        except RayTaskError as error:
            said = f"erl-pipeline cannot be used there ({error.cause}): install the same version on both"
            return NodeFinding(node, None, 0.0, (said,))
        except RayError as error:
            lines = str(error).strip().splitlines()
            return NodeFinding(node, None, 0.0, (f"no process can be started there: {lines[-1]}",))
        problems = list(problems_of(report, self.here, offset, self.store_uri))
        if self.root is not None and not report.store and not self._has_written(node):
            problems.append(
                f"store {self.store_uri} is not the one that the driver sees: a file that the node wrote "
                "there cannot be found. Use a folder that every node mounts at the same path, or a bucket"
            )
        return NodeFinding(node, report, offset, tuple(problems))

    def _has_written(self, node: Node) -> bool:
        assert self.root is not None
        return read_bytes(self.root, self.root.join(f"{self.folder}/{node.id}")) == self.content


def uri_for_all(store_uri: str) -> str:
    """The store's URI as nodes can use it, whatever their working folder: local paths become absolute."""
    root = open_root(store_uri)
    return os.path.abspath(root.path) if root.local else store_uri


@contextmanager
def survey_of(store_uri: str, packages: Sequence[str]) -> Iterator[Survey]:
    """A survey, inside this context; the files that it writes into the store are removed afterwards.

    Args:
        store_uri: as `uri_for_all` gives it; empty for no store.
        packages: those whose code the run depends on.

    Raises StoreError when this machine cannot write to the store.
    """
    content = secrets.token_hex(16).encode()
    folder = f".cluster-{secrets.token_hex(8)}"
    question = Question(packages, "", "", content, "")
    root = open_root(store_uri) if store_uri else None
    if root is not None:
        write_new(root, root.join(f"{folder}/driver"), content)
    try:
        yield Survey(root, store_uri, packages, folder, content, look(question))
    finally:
        if root is not None:
            with store_errors("remove", root.join(folder)), suppress(FileNotFoundError):
                root.fs.rm(root.join(folder), recursive=True)


def require_fit(findings: Iterable[NodeFinding]) -> None:
    """Raise ConfigError, which lists all problems, unless every node is fit."""
    wrong = [f"node {each.node.address}: {problem}" for each in findings for problem in each.problems]
    if wrong:
        raise ConfigError(
            "\n  ".join(["runner.address: the cluster cannot compute this run:", *dict.fromkeys(wrong)])
        )


def _clock_offset(actor: ActorHandle) -> float:
    """Seconds by which the clock of the actor's node is ahead, measured by the fastest of several calls."""
    import ray

    asked = []
    for _ in range(_CLOCK_QUESTIONS):
        before = time.time()
        there: float = ray.get(actor.clock.remote(), timeout=_ANSWER_SECONDS)
        after = time.time()
        asked.append((after - before, there - (before + after) / 2))
    return min(asked)[1]
