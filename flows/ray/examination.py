"""Examination of every node of a cluster on a user's request; a run does the same before it starts."""

from __future__ import annotations

from collections.abc import Sequence

from erl_pipeline.config.pipeline import NodesToFind
from flows.nodes.check import NodeFinding
from flows.nodes.survey import survey_of, uri_for_all
from flows.ray.connection import connected, worker_variables
from flows.ray.nodes import ClusterNode, living_nodes
from flows.ray.settings import RayConfig


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
        from flows.ray.survey import ask

        if devices:
            remove_placement_group(set_aside(settings, devices, threads, to_find))
        with survey_of(uri_for_all(store_uri), packages) as survey:
            return ask(survey, living_nodes(), {})
