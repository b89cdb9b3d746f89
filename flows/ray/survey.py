"""The survey of the nodes of a cluster, before a run or on request: an actor on each node answers."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from erl_pipeline.config.pipeline import NodesToFind
from flows.nodes.check import NodeFinding
from flows.nodes.report import NodeReport
from flows.nodes.survey import ANSWER_SECONDS, Survey, clock_offset, survey_of, uri_for_all
from flows.ray.actor import LINE, StageActor
from flows.ray.connection import connected, worker_variables
from flows.ray.nodes import ClusterNode, living_nodes
from flows.ray.settings import RayConfig

if TYPE_CHECKING:
    from ray.actor import ActorHandle


_BY_VALUE = threading.Lock()
"""Held while cloudpickle has the actor's module in its list: several lost actors are replaced at once."""


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
    survey: Survey, nodes: Iterable[ClusterNode], actors: Mapping[str, ActorHandle]
) -> list[NodeFinding[ClusterNode]]:
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
        asked.append((node, actor, actor.look.remote(asdict(survey.question(node.id)))))
    ray.wait([answer for *_, answer in asked], num_returns=len(asked), timeout=ANSWER_SECONDS)
    findings = [_finding(survey, node, actor, answer) for node, actor, answer in asked]
    for node, actor, _ in asked:
        if node.id not in actors:
            ray.kill(actor)
    return findings


def _finding(survey: Survey, node: ClusterNode, actor: ActorHandle, answer: Any) -> NodeFinding[ClusterNode]:
    import ray
    from ray.exceptions import GetTimeoutError, RayError, RayTaskError

    def time_there() -> float:
        told: float = ray.get(actor.clock.remote(), timeout=ANSWER_SECONDS)
        return told

    try:
        report: NodeReport = ray.get(answer, timeout=0)
        offset = clock_offset(time_there)
    except GetTimeoutError:
        return NodeFinding(
            node, None, 0.0, (f"gave no answer within {ANSWER_SECONDS:.0f} s: see Ray's logs there",)
        )
    except RayTaskError as error:
        said = f"erl-pipeline cannot be used there ({error.cause}): install the same version on both"
        return NodeFinding(node, None, 0.0, (said,))
    except RayError as error:
        lines = str(error).strip().splitlines()
        return NodeFinding(node, None, 0.0, (f"no process can be started there: {lines[-1]}",))
    return survey.finding(node, report, offset)


def examine(
    settings: RayConfig,
    store_uri: str,
    packages: Sequence[str] = (),
    devices: int = 0,
    threads: int = 1,
    to_find: NodesToFind | None = None,
) -> list[NodeFinding[ClusterNode]]:
    """What each node of the cluster at `settings.address` has, and what is wrong with it.

    Args:
        packages: those of the plug-ins that the run uses.
        devices: `resources.devices` of the run; 0 to reserve nothing.
        threads: `resources.threads` of the run.
        to_find: the other nodes of the run's trainer.

    Raises ConfigError when there is no cluster, or when it could not reserve what the workers need.
    """
    with connected(settings.address, worker_variables(threads)):
        from ray.util.placement_group import remove_placement_group

        from flows.ray.room import set_aside

        if devices:
            remove_placement_group(set_aside(settings, devices, threads, to_find))
        with survey_of(uri_for_all(store_uri), packages) as survey:
            return ask(survey, living_nodes(), {})
