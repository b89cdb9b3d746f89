"""The driver's connection to a Ray cluster; if there is no cluster, it fails within seconds."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from erl_pipeline.network import Address
from erl_pipeline.software import missing_of_extra
from flows.nodes.variables import computing_variables
from flows.stage_tasks import PREFECT_VARIABLES
from storage.errors import ConfigError

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # else Ray reports usage to its makers
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # else Ray prints to standard output, between the commands' own output
}
_CONNECT_SECONDS = 3.0
_LOCAL_OBJECT_STORE = 100_000_000
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS_FRAME = 4


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
        from ray.exceptions import RaySystemError, RpcError

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
    except (ConnectionError, RuntimeError, ValueError, RaySystemError, RpcError) as error:
        raise ConfigError(
            f"runner.address: {address}: Ray cannot be joined: {error}. This machine has to be a node of the "
            "cluster (`ray start --address`), with the same version of Ray. If the cluster asks for a token, "
            "set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def worker_variables(threads: int) -> dict[str, str]:
    """Environment variables of workers."""
    return {
        **PREFECT_VARIABLES,
        # Ray would set the number of threads to the number of cores of the worker.
        **computing_variables(threads),
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
