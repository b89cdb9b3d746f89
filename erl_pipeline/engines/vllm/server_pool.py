"""Several servers as one: one of them answers a request, and one that fails is set aside until it works."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Literal

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.engines.vllm.client import ServerFailure
from erl_pipeline.engines.vllm.replica import PrefixRouter, Replica, bring_up, sleeps
from erl_pipeline.engines.vllm.weight_sync import ServedPolicy, WeightSync
from storage.errors import EngineError

_RECOVERY_POLL_SECONDS = 1.0


class ServerPool:
    """Sends each request where `PrefixRouter` says; lives in one event loop.

    A request on a server that fails starts again on another one, or on the same when it is back, with the
    same seed. Each request gets one answer. Servers may join and leave at any time.

    Args:
        max_failures: the most failures of each server that are tolerated while one policy is served.
        recovery_seconds: how long to wait for a server when there is none that can be used.
        warn: called when a server has failed too often, and the others go on without it, and when one could
            not take weights from memory.
        forgiving_seconds: after so much work a server's earlier failures do not count.
    """

    def __init__(
        self,
        max_failures: int,
        recovery_seconds: float,
        warn: Callable[[str], None] = lambda message: None,
        forgiving_seconds: float = 1800.0,
    ) -> None:
        self._replicas: list[Replica] = []
        self._leaving: set[asyncio.Task[None]] = set()
        self._next_place = 0
        self._router = PrefixRouter()
        self._max_failures = max_failures
        self._recovery_seconds = recovery_seconds
        self._warn = warn
        self._forgiving_seconds = forgiving_seconds
        self._policy: ServedPolicy | None = None
        self._error: EngineError | None = None
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> ServerPool:
        return self

    async def __aexit__(self, *error: object) -> None:
        for leaving in self._leaving:
            leaving.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        await _cancel(self._replicas)
        for replica in self._replicas:
            await replica.client.__aexit__(*error)

    @property
    def replicas(self) -> Sequence[Replica]:
        """The servers that belong to the pool now."""
        return tuple(self._replicas)

    @property
    def gave_up(self) -> bool:
        """Whether every server has failed too often; until the next policy nothing is sampled."""
        return self._error is not None

    async def admit(self, replica: Replica) -> None:
        """Add a server, whose client is not entered yet; one of our own need not run yet. While a policy is
        served, it is given the policy, and gets requests once it has proven that it serves it."""
        await replica.client.__aenter__()
        replica.places = range(self._next_place, self._next_place + replica.client.copies)
        replica.in_flight = [0] * replica.client.copies
        self._next_place = replica.places.stop
        self._replicas.append(replica)
        if self._policy is not None:
            replica.recovery = asyncio.create_task(self._recover(replica))

    def dismiss(self, replica: Replica) -> asyncio.Task[None]:
        """Remove a server: it gets no more requests. The task ends when those that it has are answered."""
        self._replicas.remove(replica)
        replica.sync = None
        self._forget_prompts(replica)
        leaving = asyncio.create_task(self._part_with(replica))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        return leaving

    async def _part_with(self, replica: Replica) -> None:
        try:
            await _cancel([replica])
            async with self._changed:
                await self._changed.wait_for(lambda: not any(replica.in_flight))
        finally:
            await replica.client.__aexit__(None, None, None)

    async def serve(self, policy: ServedPolicy) -> list[WeightSync]:
        """Give the policy to every server, and return as soon as one has proven that it serves it. The others
        get requests from their own proofs on. Nothing may be in flight.

        Returns how each that serves the policy now came to it. Raises `EngineError` when a server cannot be
        made to serve it, and `ServerFailure` when all of them fail.
        """
        if any(sum(replica.in_flight) for replica in self._replicas):
            raise RuntimeError("weights cannot change while requests are in flight")
        self._router.forget()
        self._policy, self._error = policy, None
        for replica in self._replicas:
            replica.sync = replica.refusal = None
            replica.failures, replica.left_out = [], False
            # A server that is still busy with an earlier policy gets this one afterwards.
            if replica.recovery is None or replica.recovery.done():
                replica.recovery = asyncio.create_task(self._recover(replica))
        # The start of a server of our own, and each request, has a deadline of its own.
        await self._wait_until(
            lambda: self._available or self._all_refused, None if self._replicas else self._recovery_seconds
        )
        if not self._available:
            await _cancel(self._replicas)
            raise next(replica.refusal for replica in self._replicas if replica.refusal)
        return self.syncs()

    async def all_serving(self) -> list[WeightSync]:
        """Wait until every server that is not left out serves the policy; returns how each came to it. Raises
        as `serve`."""
        await self._wait_until(
            lambda: all(replica.available or replica.left_out for replica in self._replicas), None
        )
        return self.syncs()

    def syncs(self) -> list[WeightSync]:
        """How each server that serves the policy now came to it."""
        return [replica.sync for replica in self._replicas if replica.sync is not None]

    async def offload(self, level: Literal[1, 2] | None) -> None:
        """Free the memory of our own servers: they sleep at this level, or end (None).

        `serve` wakes or starts them again; until then nothing is sampled. A server that cannot sleep ends.
        """
        if any(sum(replica.in_flight) for replica in self._replicas):
            raise RuntimeError("memory cannot be given back while requests are in flight")
        await _cancel(self._replicas)
        self._policy = None
        for replica in self._replicas:
            if replica.server is not None and not await sleeps(replica, level):
                await asyncio.to_thread(replica.server.end)
            replica.sync = None

    async def reset_prefix_caches(self) -> None:
        """Forget the keys and values of earlier prompts; nothing may be in flight."""
        self._router.forget()
        for replica in self._replicas:
            if replica.available:
                await replica.client.reset_prefix_cache()

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample one turn from the policy that is served.

        Raises `EngineError` when every server has failed too often, with the last log lines of our own.
        """
        while True:
            replica, copy = await self._choose(request)
            assert self._policy is not None
            returns = replica.returns
            replica.in_flight[copy] += 1
            try:
                answer = await replica.client.generate(
                    request, self._policy.policy_version, replica.context_length, copy
                )
                replica.answered_at = time.monotonic()
                return answer
            except ServerFailure as failure:
                # A request that failed before the server came back says nothing about the server now.
                if replica.available and replica.returns == returns:
                    await self._set_aside(replica, failure)
            finally:
                replica.in_flight[copy] -= 1
                if replica not in self._replicas:
                    await self._tell()

    async def _choose(self, request: GenerationRequest) -> tuple[Replica, int]:
        """A replica for a request, and the number of one of its copies."""
        if self._policy is None:
            raise EngineError("the vLLM engine serves no policy yet")
        await self._wait_until(lambda: self._available, self._recovery_seconds)
        copies = {
            place: (replica, copy)
            for replica in self._replicas
            if replica.available
            for copy, place in enumerate(replica.places)
        }
        in_flight = {place: replica.in_flight[copy] for place, (replica, copy) in copies.items()}
        return copies[self._router.choose(request.prompt_token_ids, in_flight)]

    @property
    def _available(self) -> bool:
        return any(replica.available for replica in self._replicas)

    @property
    def _all_refused(self) -> bool:
        return bool(self._replicas) and all(replica.refusal for replica in self._replicas)

    async def _wait_until(self, true: Callable[[], bool], seconds: float | None) -> None:
        """Wait until something is true. Raises the error that ended the pool, or EngineError when it takes
        longer than this."""
        # Where nothing has to be waited for, no other request gets its turn in between: the load that the
        # router compares is then the present one.
        if self._error is None and not true():
            async with self._changed:
                waiting = self._changed.wait_for(lambda: self._error is not None or true())
                try:
                    await asyncio.wait_for(waiting, seconds)
                except TimeoutError as error:
                    problem = f"no server came back within {seconds:g} s"
                    raise EngineError(self._describe(problem)) from error
        if self._error is not None:
            raise self._error

    async def _set_aside(self, replica: Replica, failure: ServerFailure) -> None:
        replica.sync, replica.failed = None, True
        self._forget_prompts(replica)
        if replica.seconds_worked >= self._forgiving_seconds:
            replica.failures = []
        if await self._survives(replica, failure):
            replica.recovery = asyncio.create_task(self._recover(replica))

    def _forget_prompts(self, replica: Replica) -> None:
        for place in replica.places:
            self._router.forget(place)

    async def _survives(self, replica: Replica, failure: ServerFailure) -> bool:
        """Whether a server may be tried again after one more failure."""
        replica.failures.append(str(failure))
        replica.left_out = len(replica.failures) > self._max_failures
        if not replica.left_out:
            return True
        problem = f"more than {self._max_failures} failures (max_failures)"
        if all(each.left_out for each in self._replicas):
            await self._give_up(EngineError(self._describe(problem)))
        else:
            self._warn(
                f"{replica.client.url} gets no more requests of this policy after {problem}; "
                f"the last: {failure}"
            )
            await self._tell()
        return False

    async def _recover(self, replica: Replica) -> None:
        """Make a server serve the policy, also where that changes meanwhile, however often it fails."""
        while True:
            policy = self._policy
            assert policy is not None
            try:
                sync = await bring_up(replica, policy)
            except ServerFailure as failure:
                replica.failed, replica.refusal = True, failure
                await self._tell()
                # A server of somebody else may be away for long. One of our own was just started.
                if replica.server is not None and not await self._survives(replica, failure):
                    return
                await asyncio.sleep(_RECOVERY_POLL_SECONDS)
                continue
            except EngineError as error:
                await self._give_up(error)
                return
            except Exception as error:
                # Such as a full disk. Nobody awaits this task, and `serve` would wait for ever: whatever it
                # is, it has to be told.
                gave_up = EngineError(
                    self._describe(f"{replica.client.url} cannot be used: {type(error).__name__}: {error}")
                )
                gave_up.__cause__ = error
                await self._give_up(gave_up)
                return
            if sync.not_transferred:
                self._warn(
                    f"{replica.client.url} did not take policy {sync.policy_version} from memory, but by a "
                    f"{sync.method}: {sync.not_transferred}"
                )
            if policy is self._policy:
                break
        replica.sync, replica.refusal = sync, None
        replica.returns += 1
        replica.returned_at = replica.answered_at = time.monotonic()
        await self._tell()

    async def _give_up(self, error: EngineError) -> None:
        self._error = error
        await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _describe(self, problem: str) -> str:
        own = [(replica.client.url, replica.server) for replica in self._replicas if replica.server]
        logs = [f"{url}:\n{server.failure_log()}" for url, server in own]
        failures = [failure for replica in self._replicas for failure in replica.failures]
        return "\n".join([f"vLLM: {problem}", *failures, *logs])


async def _cancel(replicas: Sequence[Replica]) -> None:
    """Give up to make these servers serve the policy."""
    recoveries = [replica.recovery for replica in replicas if replica.recovery is not None]
    for recovery in recoveries:
        recovery.cancel()
    await asyncio.gather(*recoveries, return_exceptions=True)
