"""One server of a pool, and how it comes to serve a policy."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from erl_pipeline.engines.vllm.client import ServerFailure, VllmClient
from erl_pipeline.engines.vllm.server import ManagedServer
from erl_pipeline.engines.vllm.weight_sync import ServedPolicy, WeightSync, prove_restarted, sync_weights


@dataclass(eq=False)
class Replica:
    """One server of a pool; `server` is set when it is our own.

    `sync` says how it came to serve the policy of the pool. It is None while the replica gets no requests:
    until it has proven that it serves that policy, and after it has `failed`. `refusal` is how its last try
    to serve the policy ended, and `reads` the folder that it may be reading now. `in_flight` counts the
    requests of each copy of the model, and `places` are the router's numbers of these copies. `returns` is
    how often the replica has come to serve.
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
    context_length: int = 0
    recovery: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def available(self) -> bool:
        """Whether it gets requests."""
        return self.sync is not None


async def bring_up(replica: Replica, policy: ServedPolicy) -> WeightSync:
    """Make a server serve the policy, with proof; a server of our own that does not work is restarted.

    Raises `ServerFailure` when it fails, and `EngineError` when it cannot be made to serve the policy.
    """
    started = time.perf_counter()
    replica.reads = policy.folder
    if replica.server is not None and (replica.failed or not replica.server.running):
        await asyncio.to_thread(replica.server.restart, policy.folder)
        sync = await prove_restarted(replica.client, policy, started)
    else:
        sync = await sync_weights(replica.client, replica.server, policy)
    replica.context_length = await replica.client.context_length()
    replica.failed, replica.reads = False, None
    return sync


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
