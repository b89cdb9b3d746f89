"""The servers of a pool: how one comes to serve a policy, and which of them gets a prompt."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from erl_pipeline.engines.vllm.client import ServerFailure, VllmClient
from erl_pipeline.engines.vllm.server import ManagedServer
from erl_pipeline.engines.vllm.weight_sync import ServedPolicy, WeightSync, prove_restarted, sync_weights
from storage.errors import EngineError


@dataclass(eq=False)
class Replica:
    """One server of a pool; `server` is set when it is our own.

    `sync` says how it came to serve the policy of the pool. It is None while the replica gets no requests:
    until it has proven that it serves that policy, and after it has `failed`. `refusal` is how its last try
    to serve the policy ended, and `reads` the folder that it may be reading now. `in_flight` counts the
    requests of each copy of the model, and `places` are the router's numbers of these copies. `returns` is
    how often the replica has come to serve.

    `failures` are told since it got the policy, or since it last worked for long; with too many it is
    `left_out`. `returned_at` and `answered_at`, by `time.monotonic`, are when it last came to serve and last
    answered.
    """

    client: VllmClient
    server: ManagedServer | None = None
    in_flight: list[int] = field(default_factory=list)
    places: range = range(0)
    sync: WeightSync | None = None
    failed: bool = False
    refusal: ServerFailure | None = None
    reads: Path | None = None
    returns: int = 0
    failures: list[str] = field(default_factory=list)
    left_out: bool = False
    returned_at: float = 0.0
    answered_at: float = 0.0
    context_length: int = 0
    recovery: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def available(self) -> bool:
        """Whether it gets requests."""
        return self.sync is not None

    @property
    def seconds_worked(self) -> float:
        """From when it last came to serve to its last answer: time in which it hangs does not count."""
        return self.answered_at - self.returned_at


async def bring_up(replica: Replica, policy: ServedPolicy) -> WeightSync:
    """Make a server serve the policy, with proof; a server of our own that does not work is restarted, also
    where that is found only now.

    Raises `ServerFailure` when it fails, and `EngineError` when it cannot be made to serve the policy.
    """
    started = time.perf_counter()
    replica.reads = policy.folder
    if replica.server is None:
        sync = await sync_weights(replica.client, None, policy)
    else:
        sync = await _bring_up_own(replica, replica.server, policy, started)
    await replica.client.look_at_progress()
    replica.context_length = await replica.client.context_length()
    replica.failed, replica.reads = False, None
    return sync


async def _bring_up_own(
    replica: Replica, server: ManagedServer, policy: ServedPolicy, started: float
) -> WeightSync:
    if server.running and not replica.failed:
        # Between two policies nobody asks, so that its death is found here.
        with suppress(ServerFailure):
            return await sync_weights(replica.client, server, policy)
    await _restart(server, policy)
    return await prove_restarted(replica.client, policy, started)


async def _restart(server: ManagedServer, policy: ServedPolicy) -> None:
    try:
        await asyncio.to_thread(server.restart, await policy.written())
    except EngineError as error:
        # Another start may succeed, such as when memory of the last one is free. Who gives up tells the log.
        raise ServerFailure(f"{server.url}: {str(error).splitlines()[0]}") from error


async def sleeps(replica: Replica, level: Literal[1, 2] | None) -> bool:
    """Make a server sleep at a level. False for None, for a server that does not work, and for one that
    cannot sleep."""
    if level is None or not replica.available:
        return False
    try:
        await replica.client.sleep(level)
    except ServerFailure:
        return False
    return True


BLOCK_TOKENS = 16
"""Tokens in a block, whose keys and values a vLLM server stores and reuses only together."""
_BUSIER = 2
_REQUESTS_MORE = 8


class PrefixRouter:
    """Remembers which replica got which beginnings of prompts, and so has their keys and values.

    A server that keeps several copies of the model counts as several replicas here.

    A group's attempts share their prompt, and a turn of a conversation begins with all turns before it: on
    one replica such a beginning is computed once. A replica keeps what it has computed as long as its cache
    has room; the router forgets a block when `most_blocks` others were used after it.
    """

    def __init__(self, most_blocks: int = 100_000) -> None:
        self._most_blocks = most_blocks
        self._holders: OrderedDict[int, set[int]] = OrderedDict()

    def choose(self, prompt_token_ids: Sequence[int], in_flight: dict[int, int]) -> int:
        """The replica for a prompt. From then on it counts as having the prompt's blocks.

        It is the one that has the longest beginning of the prompt, if that is at least half of the prompt's
        whole blocks; otherwise the idlest one. A replica with more than 2n + 8 requests is passed over, where
        the idlest has n. Among equals the idlest gets the prompt, and among those the first. `in_flight`:
        requests under way, by the number of each replica that can be chosen.
        """
        least = min(in_flight.values())
        allowed = {each for each, busy in in_flight.items() if busy <= _BUSIER * least + _REQUESTS_MORE}
        blocks = list(_blocks(prompt_token_ids))
        held = {each: self._held(blocks, each) for each in allowed}
        longest = max(held.values())
        if longest and 2 * longest >= len(blocks):
            candidates = [each for each in allowed if held[each] == longest]
        else:
            candidates = [each for each, busy in in_flight.items() if busy == least]
        chosen = min(candidates, key=lambda each: (in_flight[each], each))
        self._remember(blocks, chosen)
        return chosen

    def forget(self, replica: int | None = None) -> None:
        """To be called when the cache of a replica, or of every one (None), was emptied."""
        if replica is None:
            self._holders.clear()
            return
        for holders in self._holders.values():
            holders.discard(replica)

    def _held(self, blocks: list[int], replica: int) -> int:
        """How many of these blocks the replica has before the first that it lacks."""
        for count, block in enumerate(blocks):
            if replica not in self._holders.get(block, ()):
                return count
        return len(blocks)

    def _remember(self, blocks: list[int], replica: int) -> None:
        for block in blocks:
            self._holders.setdefault(block, set()).add(replica)
            self._holders.move_to_end(block)
        while len(self._holders) > self._most_blocks:
            self._holders.popitem(last=False)


def _blocks(token_ids: Sequence[int]) -> Iterator[int]:
    """A hash of each whole block and all tokens before it."""
    before = 0
    for start in range(0, len(token_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        before = hash((before, *token_ids[start : start + BLOCK_TOKENS]))
        yield before
