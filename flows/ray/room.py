"""Reservation of what the workers of a run need, on the nodes of the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from flows.ray.nodes import ClusterNode, living_nodes
from flows.ray.settings import RayConfig
from storage.errors import ConfigError

_UNITS = {"CPU": (1, "CPUs"), "GPU": (1, "GPUs"), "memory": (1e9, "GB of memory")}


def set_aside(settings: RayConfig, devices: int, threads: int) -> PlacementGroup:
    """Have Ray reserve what all workers need, spread over the nodes: one bundle for each worker, those with a
    device first.

    Args:
        devices: `resources.devices` of the run.
        threads: `resources.threads` of the run.

    Raises ConfigError when the cluster does not have that much, or when others use it.
    """
    nodes = living_nodes()
    devices = min(devices, settings.workers)
    has_gpus = any(node.gpus for node in nodes)
    bundles = [_for_device(settings, threads, has_gpus)] * devices
    bundles += [_for_other(settings)] * (settings.workers - devices)
    room = placement_group(bundles, strategy="SPREAD")
    if not room.wait(settings.start_seconds):
        remove_placement_group(room)
        raise ConfigError(_no_room(settings, bundles, devices, nodes))
    return room


def _for_device(settings: RayConfig, threads: int, has_gpus: bool) -> dict[str, float]:
    given = settings.device_stage
    gpus = float(has_gpus) if given.gpus is None else given.gpus
    return {"CPU": given.cpus or threads, **({"GPU": gpus} if gpus else {}), **_memory(given.memory_gb)}


def _for_other(settings: RayConfig) -> dict[str, float]:
    return {"CPU": settings.other_stage.cpus, **_memory(settings.other_stage.memory_gb)}


def _memory(gb: float | None) -> dict[str, float]:
    return {} if gb is None else {"memory": gb * 1e9}


def _no_room(
    settings: RayConfig, bundles: Sequence[Mapping[str, float]], devices: int, nodes: Sequence[ClusterNode]
) -> str:
    asked = [f"resources.devices: {devices}, each with {_shown(bundles[0])} (runner.device_stage)"]
    if settings.workers > devices:
        asked.append(
            f"{settings.workers - devices} other workers (runner.workers: {settings.workers}), each with "
            f"{_shown(bundles[-1])} (runner.other_stage)"
        )
    free = ray.available_resources()
    left = _shown({name: free.get(name, 0.0) for name in ("CPU", "GPU")})
    return "\n  ".join(
        [
            f"the cluster could not reserve what this run asks for within {settings.start_seconds:g} s:",
            *asked,
            *(f"node {node}" for node in nodes),
            f"free on all nodes: {left}",
            "ask for less, add nodes, or wait until other work there has ended",
        ]
    )


def _shown(bundle: Mapping[str, float]) -> str:
    return ", ".join(f"{amount / _UNITS[name][0]:g} {_UNITS[name][1]}" for name, amount in bundle.items())
