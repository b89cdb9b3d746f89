"""A slot of a named concurrency limit of Prefect, held while a flow run uses a device."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import ConcurrencyLeaseHolder
from prefect.exceptions import PrefectHTTPStatusError

from storage.errors import ConfigError, Interrupted

LEASE_SECONDS = 60.0
"""How many seconds the slot of a killed process stays taken: the shortest lease that Prefect gives."""

_LOOK_SECONDS = 2.0
_RENEW_SECONDS = 15.0


@contextmanager
def device_slot(
    limit: str | None, flow_run_id: str, stop: threading.Event, tell: Callable[[str], None]
) -> Iterator[None]:
    """Wait for a slot of the limit and hold it inside this context.

    Args:
        limit: name of a global concurrency limit of Prefect; None to hold no slot.
        stop: ends the waiting. It is also set when the slot is lost, because then another run may get the
            device.
        tell: called with a line of text when waiting begins and ends, and when the slot is lost.

    Raises:
        ConfigError: Prefect has no limit of that name.
        Interrupted: `stop` was set while waiting.
    """
    if limit is None:
        yield
        return
    with get_client(sync_client=True) as client:
        lease = _acquire(client, limit, flow_run_id, stop, tell)
        done = threading.Event()
        # Prefect keeps its settings, such as the API's URL, in context variables: the thread needs a copy.
        renew = partial(contextvars.copy_context().run, _renew, lease, limit, done, stop, tell)
        renewing = threading.Thread(target=renew, daemon=True)
        renewing.start()
        try:
            yield
        finally:
            done.set()
            renewing.join()
            try:
                client.release_concurrency_slots_with_lease(lease)
            except httpx.HTTPError as error:
                tell(f"The slot of {limit!r} could not be released; it is free in a minute ({error})")


def _acquire(
    client: SyncPrefectClient,
    limit: str,
    flow_run_id: str,
    stop: threading.Event,
    tell: Callable[[str], None],
) -> UUID:
    holder = ConcurrencyLeaseHolder(type="flow_run", id=UUID(flow_run_id))
    told = False
    while True:
        try:
            response = client.increment_concurrency_slots_with_lease(
                [limit], 1, "concurrency", LEASE_SECONDS, holder
            )
        except PrefectHTTPStatusError as error:
            # Prefect's server answers with these while its SQLite database is locked by another writer.
            if error.response.status_code not in (httpx.codes.LOCKED, httpx.codes.SERVICE_UNAVAILABLE):
                raise
        else:
            answer = response.json()
            if not answer["limits"]:
                raise ConfigError(
                    f"Prefect has no concurrency limit {limit!r}; `erl-pipeline serve` creates `gpu`. "
                    f"Create this one with: prefect gcl create {limit} --limit 1"
                )
            if told:
                tell(f"Got a slot of {limit!r}")
            return UUID(answer["lease_id"])
        if not told:
            tell(f"Waiting for a slot of the concurrency limit {limit!r}: all are taken")
            told = True
        if stop.wait(_LOOK_SECONDS):
            raise Interrupted


def _renew(
    lease: UUID, limit: str, done: threading.Event, stop: threading.Event, tell: Callable[[str], None]
) -> None:
    """Renew the lease until `done`; set `stop` when renewals have failed for almost as long as it lasts."""
    failures = 0
    with get_client(sync_client=True) as client:
        while not done.wait(_RENEW_SECONDS):
            try:
                client.renew_concurrency_lease(lease, LEASE_SECONDS)
                failures = 0
            except httpx.HTTPError as error:
                failures += 1
                if failures * _RENEW_SECONDS >= LEASE_SECONDS - _RENEW_SECONDS:
                    tell(f"Stopping: the slot of {limit!r} could not be renewed; others may get it: {error}")
                    stop.set()
                    return
