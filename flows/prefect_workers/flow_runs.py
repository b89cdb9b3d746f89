"""The flow runs that Prefect's workers start for a run: asking for them, and looking at them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import WorkerStatus
from prefect.exceptions import ObjectNotFound
from prefect.settings import get_current_settings
from prefect.states import Cancelling
from prefect.utilities.callables import parameter_schema

from erl_pipeline.plan.resources import WorkerSettings
from flows.deployments import connected
from flows.local_server import OrchestratorError
from flows.nodes.variables import computing_variables
from flows.prefect_workers.flow import stage_worker
from flows.prefect_workers.reception import Invitation
from flows.prefect_workers.recruiting import Asked
from flows.prefect_workers.settings import PrefectWorkersConfig
from storage.errors import ConfigError

_POOL_TYPE = "process"


class FlowRuns:
    """Asks a Prefect server for flow runs of `stage_worker`.

    Args:
        url: of the server's API.
        devices: how many of the first workers are of `settings.device_work_pool`.
    """

    def __init__(
        self, url: str, settings: PrefectWorkersConfig, worker: WorkerSettings, devices: int
    ) -> None:
        self._url = url
        self._settings = settings
        self._worker = worker
        for_devices = settings.device_work_pool or settings.work_pool
        self._pools = [
            for_devices if place < devices else settings.work_pool for place in range(settings.workers)
        ]
        self._deployments: dict[str, UUID] = {}

    def prepare(self) -> None:
        """Check the work pools, and make a deployment in each.

        Raises ConfigError when a pool is missing, cannot be used, or has no worker that is online.
        """
        with self._client() as client:
            for pool in dict.fromkeys(self._pools):
                key = "device_work_pool" if pool == self._settings.device_work_pool else "work_pool"
                _require_usable(client, pool, f"runner.{key}: {pool}: ", self._url)
            for pool in dict.fromkeys(self._pools):
                self._deployments[pool] = _deploy(client, pool)

    def ask(self, place: int, invitation: Invitation) -> Asked:
        """Ask for the worker of a place."""
        with self._client() as client:
            made = client.create_flow_run_from_deployment(
                self._deployments[self._pools[place]],
                name=f"{self._worker.run}, worker {place + 1}",
                parameters={
                    "run": self._worker.run,
                    "address": invitation.address,
                    "key": invitation.key,
                    "ticket": invitation.ticket,
                },
                job_variables={"env": computing_variables(self._worker.threads)},
            )
        return Asked(made.id, made.name)

    def state(self, asked: Asked) -> tuple[bool, str]:
        """Whether a flow run has ended, and its state in words."""
        with self._client() as client:
            state = client.read_flow_run(asked.id).state
        if state is None:
            return False, "no state"
        return state.is_final(), f"{state.name}, {state.message}" if state.message else str(state.name)

    def cancel(self, asked: Asked) -> None:
        """Have a flow run ended by its Prefect worker, or never begun."""
        with self._client() as client:
            client.set_flow_run_state(asked.id, Cancelling())

    @contextmanager
    def _client(self) -> Iterator[SyncPrefectClient]:
        """A client for some calls, in any thread. Raises OrchestratorError."""
        try:
            with connected(self._url) as client:
                yield client
        except httpx.HTTPStatusError as error:
            raise OrchestratorError(f"Prefect's API at {self._url} refused a request: {error}") from error


def api_url() -> str:
    """The URL of the API that `PREFECT_API_URL` names. Raises ConfigError when it is not set."""
    url = get_current_settings().api.url
    if not url:
        raise ConfigError(
            "runner.type: prefect_workers needs a Prefect server that all machines reach: set "
            "PREFECT_API_URL, here and for the workers, such as to http://10.0.0.1:4200/api, and start the "
            "server there with `prefect server start --host 0.0.0.0`"
        )
    return url


def _require_usable(client: SyncPrefectClient, name: str, said: str, url: str) -> None:
    try:
        pool = client.read_work_pool(name)
    except ObjectNotFound as error:
        raise ConfigError(
            f"{said}the Prefect server at {url} has no such work pool; "
            f"create it with: prefect work-pool create {name} --type {_POOL_TYPE}"
        ) from error
    if pool.type != _POOL_TYPE:
        raise ConfigError(f"{said}the work pool has type {pool.type}; allowed is {_POOL_TYPE}")
    if pool.is_paused:
        raise ConfigError(f"{said}the work pool is paused; continue it with: prefect work-pool resume {name}")
    workers = client.read_workers_for_work_pool(name)
    if not any(worker.status == WorkerStatus.ONLINE for worker in workers):
        raise ConfigError(
            f"{said}no worker of this work pool is online; start one on each machine with: "
            f"prefect worker start --pool {name} --limit N"
        )


def _deploy(client: SyncPrefectClient, pool: str) -> UUID:
    """Make the deployment of the flow in a work pool; an existing one is kept up to date."""
    return client.create_deployment(
        flow_id=client.create_flow(stage_worker),
        name=pool,
        description=stage_worker.description,
        entrypoint=f"{stage_worker.fn.__module__}.{stage_worker.fn.__name__}",
        parameter_openapi_schema=parameter_schema(stage_worker).model_dump(exclude_unset=True),
        work_pool_name=pool,
        pull_steps=[],
        paused=False,
        enforce_parameter_schema=True,
    )
