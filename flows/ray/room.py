"""Reservation of what the workers of a run need, on the nodes of the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from erl_pipeline.config.pipeline import NodesToFind
from flows.ray.nodes import ClusterNode, living_nodes
from flows.ray.settings import RayConfig
from storage.errors import ConfigError

_UNITS = {"CPU": (1, "CPUs"), "GPU": (1, "GPUs"), "memory": (1e9, "GB of memory")}


def set_aside(
    settings: RayConfig, devices: int, threads: int, to_find: NodesToFind | None = None
) -> PlacementGroup:
    """Have Ray reserve what a run needs: one bundle for each worker, those with a device first, then one for
    each other node of the trainer. Bundles are on different nodes where that is possible; those on one node
    have GPUs of their own.

    Args:
        devices: `resources.devices` of the run.
        threads: `resources.threads` of the run.
        to_find: the other nodes of the run's trainer.

    Raises ConfigError when the cluster does not have that much, or when others use it, and when a bundle has
    fewer GPUs than the trainer has processes on a node.
    """
    nodes = living_nodes()
    devices = min(devices, settings.workers)
    others = 0 if to_find is None else to_find.count
    gpus_if_unset = 1 if to_find is None else to_find.processes
    with_device = _for_device(settings, threads, gpus_if_unset if any(node.gpus for node in nodes) else 0)
    if to_find is not None and 0 < with_device.get("GPU", 0) < to_find.processes:
        raise ConfigError(
            f"runner.device_stage.gpus: {with_device['GPU']:g}; each node trains with {to_find.processes} "
            f"processes (trainer.processes), each on a GPU of its own: set it to {to_find.processes}"
        )
    bundles = [with_device] * devices
    bundles += [_for_other(settings)] * (settings.workers - devices)
    bundles += [with_device] * others
    room = placement_group(bundles, strategy="SPREAD")
    if not room.wait(settings.start_seconds):
        remove_placement_group(room)
        raise ConfigError(_no_room(settings, bundles, devices, nodes, to_find))
    return room


def _for_device(settings: RayConfig, threads: int, gpus_if_unset: float) -> dict[str, float]:
    given = settings.device_stage
    gpus = gpus_if_unset if given.gpus is None else given.gpus
    return {"CPU": given.cpus or threads, **({"GPU": gpus} if gpus else {}), **_memory(given.memory_gb)}


def _for_other(settings: RayConfig) -> dict[str, float]:
    return {"CPU": settings.other_stage.cpus, **_memory(settings.other_stage.memory_gb)}


def _memory(gb: float | None) -> dict[str, float]:
    return {} if gb is None else {"memory": gb * 1e9}


def _no_room(
    settings: RayConfig,
    bundles: Sequence[Mapping[str, float]],
    devices: int,
    nodes: Sequence[ClusterNode],
    to_find: NodesToFind | None,
) -> str:
    asked = [f"resources.devices: {devices}, each with {_shown(bundles[0])} (runner.device_stage)"]
    if settings.workers > devices:
        asked.append(
            f"{settings.workers - devices} other workers (runner.workers: {settings.workers}), each with "
            f"{_shown(bundles[settings.workers - 1])} (runner.other_stage)"
        )
    if to_find is not None:
        asked.append(
            f"{to_find.count} more for the trainer (trainer.nodes: {to_find.count + 1}), each with "
            f"{_shown(bundles[0])} (runner.device_stage)"
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
