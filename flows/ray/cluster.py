"""A Ray cluster: the driver's connection, and the reservation of what the workers of a run need."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from erl_pipeline.config.pipeline import NodesToFind, ResourcesConfig
from erl_pipeline.network import Address
from erl_pipeline.software import missing_of_extra
from flows.ray.nodes import ClusterNode, living_nodes
from flows.ray.settings import DeviceStageConfig, RayConfig
from flows.stage_tasks import PREFECT_VARIABLES
from storage.errors import ConfigError

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # else Ray reports usage to its makers
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # else Ray prints to standard output, between the commands' own output
}
_PASSED_ON = ("GOMP_SPINCOUNT", "HF_HUB_DISABLE_PROGRESS_BARS")
"""Variables of this process that workers get too."""
_CONNECT_SECONDS = 3.0
_LOCAL_OBJECT_STORE = 100_000_000
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS_FRAME = 4
_UNITS = {"CPU": (1, "CPUs"), "GPU": (1, "GPUs"), "memory": (1e9, "GB of memory")}


@contextmanager
def connected(address: str, variables: Mapping[str, str]) -> Iterator[None]:
    """Connect to the cluster at an address of the form of `runner.address`, inside this context.

    Args:
        variables: environment variables of the workers.

    Raises ConfigError when Ray is not installed, or no cluster answers at the address.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    missing = missing_of_extra("erl-pipeline", "ray")
    try:
        import ray
        from ray.exceptions import AuthenticationError, RaySystemError, RpcError

        if importlib.util.find_spec("prefect_ray") is None:
            raise ModuleNotFoundError("prefect_ray")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"runner.type: ray needs {', '.join(missing) or 'ray'}: pip install 'erl-pipeline[ray]'"
        ) from error
    logging.getLogger("ray").setLevel(logging.ERROR)  # it logs each connection
    local = {"include_dashboard": False, "object_store_memory": _LOCAL_OBJECT_STORE}
    try:
        ray.init(
            address="local" if address == "local" else _head(address),
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": dict(variables)},
            **(local if address == "local" else {}),
        )
    except (
        AuthenticationError,
        ConnectionError,
        RuntimeError,
        ValueError,
        RaySystemError,
        RpcError,
    ) as error:
        raise ConfigError(
            f"runner.address: {address}: Ray cannot be joined: {error}. This machine has to be a node of the "
            "cluster (`ray start --address`), with the same version of Ray. If the cluster asks for a token, "
            "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def worker_variables(threads: int) -> dict[str, str]:
    """Environment variables of workers."""
    return {
        **PREFECT_VARIABLES,
        **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        # Ray would set the number of threads to the number of cores of the worker.
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads)),
        # Else a worker without a GPU would see all GPUs of its node.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
    }


def _head(address: str) -> str:
    """HOST:PORT of a head that answers, or `auto` where Ray has to look for a cluster on this machine.

    Checked here, since Ray itself would try for most of a minute."""
    found = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    if found == "auto":
        return found
    try:
        head = Address.parse(found)
        _require_grpc(head.host, head.port)
    except ValueError as error:
        raise ConfigError(f"runner.address: {address}: RAY_ADDRESS is {error}") from error
    except socket.gaierror as error:
        raise ConfigError(f"runner.address: {address}: the host is not known ({error})") from error
    except OSError as error:
        raise ConfigError(
            f"runner.address: {address}: no Ray cluster answers at {found} ({error}). Start one there with "
            "`ray start --head`, or correct the address; `ray status` on the head shows a cluster that runs"
        ) from error
    return found


def _require_grpc(host: str, port: int) -> None:
    """Raise OSError unless a gRPC server, such as Ray's head, listens there: it answers the HTTP/2 connection
    preface with a SETTINGS frame."""
    with socket.create_connection((host, port), timeout=_CONNECT_SECONDS) as connection:
        connection.sendall(_HTTP2_GREETING)
        frame = connection.recv(9)
    if len(frame) < 4 or frame[3] != _SETTINGS_FRAME:
        raise ConnectionError("the server there is not a Ray head")


def set_aside(settings: RayConfig, resources: ResourcesConfig, to_find: NodesToFind) -> PlacementGroup:
    """Have Ray reserve what a run needs: one bundle for each worker, those with a device first, then one for
    each other node of the trainer. Bundles are on different nodes where that is possible; those on one node
    have GPUs of their own.

    Args:
        to_find: the other nodes of the run's trainer, and its processes on each node.

    Raises ConfigError when the cluster does not have that much, or when others use it, and when a bundle has
    fewer GPUs than the trainer has processes on a node.
    """
    from ray.util.placement_group import placement_group, remove_placement_group

    nodes = living_nodes()
    given, groups = settings.device_stage, resources.groups
    if groups is not None:
        gpus: list[float] = [len(groups.sample), len(groups.train)]
    else:
        if given.gpus is not None:
            each = given.gpus
        elif any(node.gpus for node in nodes):
            each = to_find.processes
        else:
            each = 0
        gpus = [each] * min(resources.devices, settings.workers)
    if to_find.processes > 1 and 0 < gpus[-1] < to_find.processes:
        raise ConfigError(
            f"runner.device_stage.gpus: {gpus[-1]:g}; each node trains with {to_find.processes} "
            f"processes (trainer.processes), each on a GPU of its own: set it to {to_find.processes}"
        )
    with_device = [_for_device(given, resources.threads, each) for each in gpus]
    bundles = [*with_device, *[_for_other(settings)] * (settings.workers - len(with_device))]
    bundles += [with_device[-1]] * to_find.count
    room = placement_group(bundles, strategy="SPREAD")
    if not room.wait(settings.start_seconds):
        remove_placement_group(room)
        raise ConfigError(_no_room(settings, bundles, resources, nodes, to_find))
    return room


def _for_device(given: DeviceStageConfig, threads: int, gpus: float) -> dict[str, float]:
    return {"CPU": given.cpus or threads, **({"GPU": gpus} if gpus else {}), **_memory(given.memory_gb)}


def _for_other(settings: RayConfig) -> dict[str, float]:
    return {"CPU": settings.other_stage.cpus, **_memory(settings.other_stage.memory_gb)}


def _memory(gb: float | None) -> dict[str, float]:
    return {} if gb is None else {"memory": gb * 1e9}


def _no_room(
    settings: RayConfig,
    bundles: Sequence[Mapping[str, float]],
    resources: ResourcesConfig,
    nodes: Sequence[ClusterNode],
    to_find: NodesToFind,
) -> str:
    import ray

    if resources.groups is None:
        devices = min(resources.devices, settings.workers)
        asked = [f"resources.devices: {devices}, each with {_shown(bundles[0])} (runner.device_stage)"]
    else:
        devices = 2
        asked = [
            f"resources.groups.{name}: {_shown(bundle)} on one node"
            for name, bundle in zip(("sample", "train"), bundles, strict=False)
        ]
    if settings.workers > devices:
        asked.append(
            f"{settings.workers - devices} other workers (runner.workers: {settings.workers}), each with "
            f"{_shown(bundles[settings.workers - 1])} (runner.other_stage)"
        )
    if to_find.count:
        asked.append(
            f"{to_find.count} more for the trainer (trainer.nodes: {to_find.count + 1}), each with "
            f"{_shown(bundles[-1])} (runner.device_stage)"
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
