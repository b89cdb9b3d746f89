"""Several servers as one: one of them answers a request, and one that fails is set aside until it works."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.engines.vllm.client import ServerFailure, VllmClient
from erl_pipeline.engines.vllm.routing import PrefixRouter
from erl_pipeline.engines.vllm.server import ManagedServer
from erl_pipeline.engines.vllm.weight_sync import ServedPolicy, WeightSync, prove_restarted, sync_weights
from storage.errors import EngineError

_RECOVERY_POLL_SECONDS = 1.0


@dataclass
class Replica:
    """One server of a pool; `server` is set when it is our own. `returns` is how often it has recovered."""

    client: VllmClient
    server: ManagedServer | None = None
    in_flight: int = 0
    available: bool = True
    returns: int = 0
    context_length: int = 0
    recovery: asyncio.Task[None] | None = field(default=None, repr=False)


class ServerPool:
    """Sends each request where `PrefixRouter` says; lives in one event loop.

    A request on a server that fails starts again on another one, or on the same when it is back, with the
    same seed. Each request gets one answer.

    Args:
        replicas: their clients are not entered yet; our own servers among them need not run yet.
        max_failures: the most failures of servers that are tolerated while one policy is served.
        recovery_seconds: how long to wait for a server when all are set aside.
    """

    def __init__(self, replicas: Sequence[Replica], max_failures: int, recovery_seconds: float) -> None:
        self._replicas = list(replicas)
        self._router = PrefixRouter()
        self._max_failures = max_failures
        self._recovery_seconds = recovery_seconds
        self._policy: ServedPolicy | None = None
        self._failures: list[str] = []
        self._error: EngineError | None = None
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> ServerPool:
        for replica in self._replicas:
            await replica.client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end_recoveries()
        for replica in self._replicas:
            await replica.client.__aexit__(kind, error, trace)

    async def serve(self, policy: ServedPolicy) -> list[WeightSync]:
        """Give the policy to every server and prove that each serves it; nothing may be in flight.

        Raises `EngineError` when a server cannot be made to serve it.
        """
        if any(replica.in_flight for replica in self._replicas):
            raise RuntimeError("weights cannot change while requests are in flight")
        await self._end_recoveries()
        self._router.forget()
        self._policy, self._failures, self._error = policy, [], None
        syncs = await asyncio.gather(*(self._bring_up(replica) for replica in self._replicas))
        for replica in self._replicas:
            replica.available = True
        return syncs

    async def offload(self, level: Literal[1, 2] | None) -> None:
        """Free the memory of our own servers: they sleep at this level, or end (None).

        `serve` wakes or starts them again; until then nothing is sampled. A server that cannot sleep ends.
        """
        if any(replica.in_flight for replica in self._replicas):
            raise RuntimeError("memory cannot be given back while requests are in flight")
        await self._end_recoveries()
        self._policy = None
        for replica in self._replicas:
            if replica.server is not None and not await _sleeps(replica, level):
                await asyncio.to_thread(replica.server.end)

    async def reset_prefix_caches(self) -> None:
        """Forget the keys and values of earlier prompts; nothing may be in flight."""
        self._router.forget()
        for replica in self._replicas:
            if replica.available:
                await replica.client.reset_prefix_cache()

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample one turn from the policy that is served.

        Raises `EngineError` after too many failures, with the last log lines of our own servers.
        """
        while True:
            replica = await self._replica_for(request)
            assert self._policy is not None
            returns = replica.returns
            replica.in_flight += 1
            try:
                return await replica.client.generate(
                    request, self._policy.policy_version, replica.context_length
                )
            except ServerFailure as failure:
                # A request that failed before the server came back says nothing about the server now.
                if replica.available and replica.returns == returns:
                    await self._set_aside(replica, failure)
            finally:
                replica.in_flight -= 1

    async def _replica_for(self, request: GenerationRequest) -> Replica:
        if self._policy is None:
            raise EngineError("the vLLM engine serves no policy yet")
        while not self._available_or_failed():
            await self._wait_for_replica()
        if self._error is not None:
            raise self._error
        in_flight = {
            number: replica.in_flight for number, replica in enumerate(self._replicas) if replica.available
        }
        return self._replicas[self._router.choose(request.prompt_token_ids, in_flight)]

    async def _wait_for_replica(self) -> None:
        async with self._changed:
            waiting = self._changed.wait_for(self._available_or_failed)
            try:
                await asyncio.wait_for(waiting, self._recovery_seconds)
            except TimeoutError as error:
                problem = f"no server came back within {self._recovery_seconds:g} s"
                raise EngineError(self._describe(problem)) from error

    def _available_or_failed(self) -> bool:
        return self._error is not None or any(replica.available for replica in self._replicas)

    async def _set_aside(self, replica: Replica, failure: ServerFailure) -> None:
        replica.available = False
        self._router.forget(self._replicas.index(replica))
        if await self._survives(failure):
            replica.recovery = asyncio.create_task(self._recover(replica))

    async def _survives(self, failure: ServerFailure) -> bool:
        self._failures.append(str(failure))
        if len(self._failures) <= self._max_failures:
            return True
        await self._give_up(
            EngineError(self._describe(f"more than {self._max_failures} failures (max_failures)"))
        )
        return False

    async def _recover(self, replica: Replica) -> None:
        while True:
            try:
                await self._bring_up(replica)
                break
            except ServerFailure as failure:
                # A server of somebody else may be away for long. One of our own was just started.
                if replica.server is not None and not await self._survives(failure):
                    return
                await asyncio.sleep(_RECOVERY_POLL_SECONDS)
            except EngineError as error:
                await self._give_up(error)
                return
        async with self._changed:
            replica.available = True
            replica.returns += 1
            self._changed.notify_all()

    async def _bring_up(self, replica: Replica) -> WeightSync:
        """Make one server serve the policy; a server of our own that does not work is restarted."""
        assert self._policy is not None
        started = time.perf_counter()
        if replica.server is not None and not (replica.available and replica.server.running):
            await asyncio.to_thread(replica.server.restart, self._policy.folder)
            sync = await prove_restarted(replica.client, self._policy, started)
        else:
            sync = await sync_weights(replica.client, replica.server, self._policy)
        replica.context_length = await replica.client.context_length()
        return sync

    async def _give_up(self, error: EngineError) -> None:
        async with self._changed:
            self._error = error
            self._changed.notify_all()

    async def _end_recoveries(self) -> None:
        recoveries = [replica.recovery for replica in self._replicas if replica.recovery is not None]
        for recovery in recoveries:
            recovery.cancel()
        await asyncio.gather(*recoveries, return_exceptions=True)

    def _describe(self, problem: str) -> str:
        own = [(replica.client.url, replica.server) for replica in self._replicas if replica.server]
        logs = [f"{url}:\n{server.failure_log()}" for url, server in own]
        return "\n".join([f"vLLM: {problem}", *self._failures, *logs])


async def _sleeps(replica: Replica, level: Literal[1, 2] | None) -> bool:
    if level is None or not replica.available:
        return False
    try:
        await replica.client.sleep(level)
    except ServerFailure:
        return False
    return True
