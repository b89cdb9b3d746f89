"""Giving a server the weights of a new policy, with proof that it samples from them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from erl_pipeline.generation.vllm.client import VllmClient
from erl_pipeline.generation.vllm.probe import Difference, Probe, compare, tolerance
from erl_pipeline.generation.vllm.server import ManagedServer
from storage.errors import EngineError

Method = Literal["kept", "reload", "restart"]
"""How a server got its weights: it had them, read them while it ran, or was started with them."""


@dataclass(frozen=True)
class ServedPolicy:
    """What a server is to serve: `folder` from `write_serving_copy`, `dtype` the server's number type."""

    policy_version: str
    folder: Path
    probe: Probe
    dtype: str


@dataclass(frozen=True)
class Handover:
    """How a server came to serve a policy, and how far it then was from the trainer's model."""

    url: str
    policy_version: str
    method: Method
    seconds: float
    difference: Difference


async def hand_over(client: VllmClient, server: ManagedServer | None, policy: ServedPolicy) -> Handover:
    """Load the policy into a running server, unless it says it has it, and prove it.

    Where the proof fails, a server of our own (`server`) is restarted with the policy and must prove it
    again. Raises `EngineError` when the server still serves something else, `ServerFailure` when it fails.
    """
    started = time.perf_counter()
    # A server of somebody else may only have been out of reach; reloading it would drop its cache.
    if await client.weights_label() == policy.policy_version:
        difference = await _distance(client, policy.probe)
        if difference.within(_tolerance(policy)):
            return await _conclude(client, policy, "kept", difference, started)
    await client.reload_weights(policy.folder)
    difference = await _distance(client, policy.probe)
    method: Method = "reload"
    if server is not None and not difference.within(_tolerance(policy)):
        await asyncio.to_thread(server.restart, policy.folder)
        difference = await _distance(client, policy.probe)
        method = "restart"
    return await _conclude(client, policy, method, difference, started)


async def prove_restarted(client: VllmClient, policy: ServedPolicy, started: float) -> Handover:
    """The proof for a server that was started with this policy; `started` is of `time.perf_counter`."""
    return await _conclude(client, policy, "restart", await _distance(client, policy.probe), started)


async def _conclude(
    client: VllmClient,
    policy: ServedPolicy,
    method: Method,
    difference: Difference,
    started: float,
) -> Handover:
    bound = _tolerance(policy)
    if not difference.within(bound):
        raise EngineError(
            f"{client.url} does not serve policy {policy.policy_version} after a {method}: its "
            f"log-probabilities differ from the trainer's by {difference.mean:.3g} nats on average and "
            f"{difference.maximum:.3g} at most; allowed are {bound.mean:g} and {bound.maximum:g} "
            f"(server in {policy.dtype}, trainer in {policy.probe.dtype})"
        )
    # Last, so that no answer carries the label before the proof.
    await client.label_weights(policy.policy_version)
    return Handover(client.url, policy.policy_version, method, time.perf_counter() - started, difference)


async def _distance(client: VllmClient, probe: Probe) -> Difference:
    return compare(probe, await asyncio.gather(*(client.score(ids) for ids in probe.token_ids)))


def _tolerance(policy: ServedPolicy) -> Difference:
    return tolerance(policy.probe.dtype, policy.dtype)
