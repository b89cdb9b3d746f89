"""Several servers as one: the least busy answers, a failing one is set aside until it is well again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.engines.vllm.client import ServerFailure, VllmClient
from erl_pipeline.engines.vllm.server import ManagedServer
from erl_pipeline.engines.vllm.weight_sync import Handover, ServedPolicy, hand_over, prove_restarted
from storage.errors import EngineError

_RECOVERY_POLL_SECONDS = 1.0


@dataclass
class Member:
    """One server of a fleet; `server` is set when it is our own."""

    client: VllmClient
    server: ManagedServer | None = None
    in_flight: int = 0
    available: bool = True
    returns: int = 0
    context_length: int = 0
    recovery: asyncio.Task[None] | None = field(default=None, repr=False)


class Fleet:
    """Sends each request to the least busy server; lives in one event loop.

    A request that was on a failing server goes to another one, or to the same when it is back, from its
    beginning: it has the same seed, and only one answer is ever handed out.

    Args:
        members: clients not yet entered; servers of our own that are started.
        max_failures: failures of servers that are survived while one policy is served.
        recovery_seconds: how long to wait for a server when all are set aside.
    """

    def __init__(self, members: Sequence[Member], max_failures: int, recovery_seconds: float) -> None:
        self._members = list(members)
        self._max_failures = max_failures
        self._recovery_seconds = recovery_seconds
        self._policy: ServedPolicy | None = None
        self._failures: list[str] = []
        self._error: EngineError | None = None
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Fleet:
        for member in self._members:
            await member.client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end_recoveries()
        for member in self._members:
            await member.client.__aexit__(kind, error, trace)

    async def serve(self, policy: ServedPolicy) -> list[Handover]:
        """Hand the policy to every server, with proof; nothing may be in flight.

        Raises `EngineError` when a server cannot be made to serve it.
        """
        if any(member.in_flight for member in self._members):
            raise RuntimeError("a policy cannot be handed over while requests are in flight")
        await self._end_recoveries()
        self._policy, self._failures, self._error = policy, [], None
        handovers = await asyncio.gather(*(self._bring_up(member) for member in self._members))
        for member in self._members:
            member.available = True
        return handovers

    async def rest(self, level: Literal[1, 2] | None) -> None:
        """Give the memory of our own servers back: let them sleep at this level, or end them (None).

        `serve` wakes or starts them again; until then nothing is sampled. A server that fails to sleep
        ends.
        """
        if any(member.in_flight for member in self._members):
            raise RuntimeError("a server cannot rest while requests are in flight")
        await self._end_recoveries()
        self._policy = None
        for member in self._members:
            if member.server is not None and not await _falls_asleep(member, level):
                await asyncio.to_thread(member.server.end)

    async def reset_prefix_caches(self) -> None:
        """Forget the keys and values of earlier prompts; nothing may be in flight."""
        for member in self._members:
            if member.available:
                await member.client.reset_prefix_cache()

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample one turn from the policy that is served.

        Raises `EngineError` after too many failures, with the last log lines of our own servers.
        """
        while True:
            member = await self._least_busy()
            assert self._policy is not None
            returns = member.returns
            member.in_flight += 1
            try:
                return await member.client.generate(
                    request, self._policy.policy_version, member.context_length
                )
            except ServerFailure as failure:
                # A late failure of a server that has come back since says nothing about it now.
                if member.available and member.returns == returns:
                    await self._set_aside(member, failure)
            finally:
                member.in_flight -= 1

    async def _least_busy(self) -> Member:
        if self._policy is None:
            raise EngineError("the vLLM engine serves no policy yet")
        while not self._someone_or_error():
            await self._wait_for_someone()
        if self._error is not None:
            raise self._error
        available = [member for member in self._members if member.available]
        return min(available, key=lambda member: member.in_flight)

    async def _wait_for_someone(self) -> None:
        async with self._changed:
            waiting = self._changed.wait_for(self._someone_or_error)
            try:
                await asyncio.wait_for(waiting, self._recovery_seconds)
            except TimeoutError as error:
                problem = f"no server came back within {self._recovery_seconds:g} s"
                raise EngineError(self._describe(problem)) from error

    def _someone_or_error(self) -> bool:
        return self._error is not None or any(member.available for member in self._members)

    async def _set_aside(self, member: Member, failure: ServerFailure) -> None:
        member.available = False
        if await self._survives(failure):
            member.recovery = asyncio.create_task(self._recover(member))

    async def _survives(self, failure: ServerFailure) -> bool:
        self._failures.append(str(failure))
        if len(self._failures) <= self._max_failures:
            return True
        await self._give_up(
            EngineError(self._describe(f"more than {self._max_failures} failures (max_failures)"))
        )
        return False

    async def _recover(self, member: Member) -> None:
        while True:
            try:
                await self._bring_up(member)
                break
            except ServerFailure as failure:
                # A server of somebody else may be away for long; ours was just started.
                if member.server is not None and not await self._survives(failure):
                    return
                await asyncio.sleep(_RECOVERY_POLL_SECONDS)
            except EngineError as error:
                await self._give_up(error)
                return
        async with self._changed:
            member.available = True
            member.returns += 1
            self._changed.notify_all()

    async def _bring_up(self, member: Member) -> Handover:
        """Make one server serve the policy: ours starts anew unless it is well."""
        assert self._policy is not None
        started = time.perf_counter()
        if member.server is not None and not (member.available and member.server.running):
            await asyncio.to_thread(member.server.restart, self._policy.folder)
            handover = await prove_restarted(member.client, self._policy, started)
        else:
            handover = await hand_over(member.client, member.server, self._policy)
        member.context_length = await member.client.context_length()
        return handover

    async def _give_up(self, error: EngineError) -> None:
        async with self._changed:
            self._error = error
            self._changed.notify_all()

    async def _end_recoveries(self) -> None:
        recoveries = [member.recovery for member in self._members if member.recovery is not None]
        for recovery in recoveries:
            recovery.cancel()
        await asyncio.gather(*recoveries, return_exceptions=True)

    def _describe(self, problem: str) -> str:
        logs = [
            f"{member.client.url}:\n{member.server.last_words()}" for member in self._members if member.server
        ]
        return "\n".join([f"vLLM: {problem}", *self._failures, *logs])


async def _falls_asleep(member: Member, level: Literal[1, 2] | None) -> bool:
    if level is None or not member.available:
        return False
    try:
        await member.client.sleep(level)
    except ServerFailure:
        return False
    return True
