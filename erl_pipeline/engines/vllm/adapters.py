"""Policies that are LoRA adapters: the server keeps the weights of the base and is given a small adapter.

An adapter is loaded under its policy version, a name that no other adapter ever has. Each request names
its adapter: the server refuses an adapter that it does not have, and shares no cached prompt between
adapters. A request that names none is answered by the base.
"""

from __future__ import annotations

import asyncio
import math

import numpy as np

from erl_pipeline.engines.interface import Probe, ServedAdapter
from erl_pipeline.engines.vllm.client import VllmClient
from storage.errors import EngineError

ADAPTER_ENVIRONMENT = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
"""Environment variables of a server that loads adapters while it runs."""

_SERVED_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_SHARE_NEEDED = 0.5
_STANDARD_ERRORS = 5.0


def adapter_arguments(adapter: ServedAdapter) -> list[str]:
    """Arguments of a server that serves one adapter at a time, of the rank and modules of this one."""
    room = next(served for served in _SERVED_RANKS if served >= adapter.rank)
    # A server that may adapt the output head crashes when asked for a prompt's log-probabilities (vLLM 0.32).
    modules = ["--lora-target-modules", *adapter.modules]
    return ["--enable-lora", *modules, "--max-loras=1", f"--max-lora-rank={room}"]


async def put_adapter(client: VllmClient, policy_version: str, adapter: ServedAdapter) -> None:
    """Load an adapter, drop all others and send requests to it; no request may be in flight.

    Raises `EngineError` when the server takes no adapters at run time.
    """
    loaded = await client.adapters()
    wanted = None if adapter.folder is None else policy_version
    if adapter.folder is not None and policy_version not in loaded:
        try:
            await client.load_adapter(policy_version, adapter.folder)
        except EngineError as error:
            variables = " ".join(f"{name}={value}" for name, value in ADAPTER_ENVIRONMENT.items())
            raise EngineError(
                f"{error}. A server takes LoRA adapters only when it was started with {variables}, "
                "--enable-lora, --lora-target-modules and a --max-lora-rank that is high enough"
            ) from error
    for name in loaded:
        if name != wanted:
            await client.unload_adapter(name)
    client.adapter = wanted
    await client.reset_prefix_cache()


async def has_adapter(client: VllmClient, policy_version: str, adapter: ServedAdapter) -> bool:
    """Whether requests go to this adapter and the server has no other."""
    wanted = None if adapter.folder is None else policy_version
    return client.adapter == wanted and await client.adapters() == ([] if wanted is None else [wanted])


async def prove_adapter(
    client: VllmClient, probe: Probe, policy_version: str, adapter: ServedAdapter
) -> None:
    """Raise `EngineError` where it can be shown that a copy of the server does not apply the adapter.

    A fresh adapter changes log-probabilities by less than the tolerance of a coarse number type, so
    comparing them token by token shows nothing. But rounding is random, and its size is known from how
    much server and trainer differ on the base: the mean over all tokens of the probe shows the change.
    """
    if adapter.folder is None:
        return
    if probe.base_logprobs is None:
        raise ValueError("the probe of a policy with an adapter must hold what its base says too")
    trainer_base = np.asarray(probe.base_logprobs)
    for copy in range(client.copies):
        base, adapted = [await _scores(client, probe, copy, base=of_base) for of_base in (True, False)]
        share, error = applied_share(
            trainer=np.asarray(probe.logprobs) - trainer_base,
            server=adapted - base,
            rounding=base - trainer_base,
        )
        if _STANDARD_ERRORS * error <= _SHARE_NEEDED and not share >= _SHARE_NEEDED:
            raise EngineError(
                f"{client.url} does not apply the adapter of policy {policy_version}: the server shows "
                f"{share:.2f} of the change that the adapter makes to the trainer's log-probabilities "
                f"(standard error {error:.2g}); with the adapter it would show 1"
            )


async def _scores(client: VllmClient, probe: Probe, copy: int, *, base: bool) -> np.ndarray:
    """A copy's log-probabilities of the probe's continuations: `[sequences, time]`."""
    scores = (client.score(ids, copy, base=base) for ids in probe.token_ids)
    return np.asarray(await asyncio.gather(*scores), dtype=float)[:, -len(probe.logprobs[0]) :]


def applied_share(trainer: np.ndarray, server: np.ndarray, rounding: np.ndarray) -> tuple[float, float]:
    """How much of the trainer's change of log-probabilities the server shows, and its standard error.

    The least-squares factor between the two changes: 1 where the server applies the adapter, 0 where it
    does not. `rounding` is how much the two differ without an adapter; all three have the same shape.
    """
    size = float(np.sum(trainer**2))
    if size == 0.0:
        return 0.0, math.inf
    # Rounding enters twice: with the adapter and without.
    error = math.sqrt(2.0 * float(np.mean(rounding**2)) / size)
    return float(np.sum(trainer * server)) / size, error
