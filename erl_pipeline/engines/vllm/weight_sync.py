"""Giving a server the weights of a new policy, or an adapter of its base, with proof that it samples from it.

A LoRA adapter is loaded under its policy version, a name that no other adapter ever has. Each request names
its adapter: the server refuses an adapter that it does not have, and shares no cached prompt between
adapters. A request that names none is answered by the base.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Literal

import numpy as np

from erl_pipeline.engines.interface import PROBE_TEMPERATURE, Probe, ServedAdapter
from erl_pipeline.engines.vllm.client import (
    ProbeAnswer,
    ServerFailure,
    UndefinedLogprobs,
    VllmClient,
    WeightsInMemory,
)
from erl_pipeline.engines.vllm.server import ManagedServer
from erl_pipeline.engines.vllm.serving_copy import ServingCopy
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


def _wanted_adapter(policy: ServedPolicy) -> str | None:
    """The name of the policy's adapter; None where it has none, or none that was saved."""
    return policy.policy_version if policy.adapter is not None and policy.adapter.folder is not None else None


async def _put_adapter(client: VllmClient, policy: ServedPolicy) -> None:
    """Load the policy's adapter, drop all others and send requests to it; no request may be in flight.

    Raises `EngineError` when the server takes no adapters at run time.
    """
    if policy.adapter is None:
        return
    loaded, wanted = await client.adapters(), _wanted_adapter(policy)
    if policy.adapter.folder is not None and wanted not in loaded:
        try:
            await client.load_adapter(policy.policy_version, policy.adapter.folder)
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


async def _has_adapter(client: VllmClient, policy: ServedPolicy) -> bool:
    """Whether requests go to the policy's adapter, if it has one, and the server has no other."""
    wanted = _wanted_adapter(policy)
    return policy.adapter is None or (
        client.adapter == wanted and await client.adapters() == ([] if wanted is None else [wanted])
    )


async def prove_adapter(client: VllmClient, policy: ServedPolicy) -> None:
    """Raise `EngineError` where it can be shown that a copy of the server does not apply the adapter.

    A fresh adapter changes log-probabilities by less than the tolerance of a coarse number type, so
    comparing them token by token shows nothing. But rounding is random, and its size is known from how
    much server and trainer differ on the base: the mean over all tokens of the probe shows the change.
    """
    probe = policy.probe
    if policy.adapter is None or policy.adapter.folder is None:
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
                f"{client.url} does not apply the adapter of policy {policy.policy_version}: the server "
                f"shows {share:.2f} of the change that the adapter makes to the trainer's log-probabilities "
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


@dataclass(frozen=True)
class LogprobDifference:
    """How far two sets of log-probabilities differ: mean and maximum of |difference|, in nats."""

    mean: float
    maximum: float

    def within(self, tolerance: LogprobDifference) -> bool:
        """Whether neither exceeds its bound; a difference that is no number exceeds every bound."""
        return self.mean <= tolerance.mean and self.maximum <= tolerance.maximum

    def or_worse(self, other: LogprobDifference) -> LogprobDifference:
        """The larger mean and the larger maximum of both; not a number where one of them is none."""
        # Python's `max` would drop a nan, depending on the order.
        mean, maximum = np.maximum((self.mean, self.maximum), (other.mean, other.maximum))
        return LogprobDifference(float(mean), float(maximum))


TOLERANCES = {
    "float32": LogprobDifference(mean=1e-4, maximum=1e-3),
    "float16": LogprobDifference(mean=3e-2, maximum=3e-1),
    "bfloat16": LogprobDifference(mean=2e-1, maximum=2.0),
}
"""How far server and probe may differ where the coarser of the two computes in this number type.

About three times what rounding alone gave with 135M parameters in bfloat16: 0.05 to 0.08 on average, at
most 0.7. Small updates change them by less than that. A weight that was not loaded is noticed all the same:
all weights are set to 0 before they are read, so log-probabilities are then wrong by nats.
"""


def tolerance(probe_dtype: str, server_dtype: str) -> LogprobDifference:
    """The looser of the two number types' tolerances."""
    return max(TOLERANCES[probe_dtype], TOLERANCES[server_dtype], key=lambda bound: bound.maximum)


def compare(probe: Probe, logprobs: Sequence[Sequence[float]]) -> LogprobDifference:
    """How far `logprobs`, of the last tokens of the probe's sequences, differ from the probe's.

    There may be more of them than the probe has; those of earlier tokens are left out.
    """
    theirs = [row[-len(mine) :] for row, mine in zip(logprobs, probe.logprobs, strict=True)]
    distance = np.abs(np.asarray(probe.logprobs) - np.asarray(theirs))
    return LogprobDifference(float(distance.mean()), float(distance.max()))


def compare_hot(probe: Probe, answers: Sequence[ProbeAnswer]) -> LogprobDifference:
    """How far a server's log-probabilities of tokens that it drew differ from the probe's.

    One token was drawn after each of the probe's sequences, at `PROBE_TEMPERATURE`.
    """
    mine = [probe.hot_logprobs[row, answer.drawn_token] for row, answer in enumerate(answers)]
    distance = np.abs(np.asarray(mine) - np.asarray([answer.drawn_logprob for answer in answers]))
    return LogprobDifference(float(distance.mean()), float(distance.max()))


Method = Literal["kept", "transfer", "reload", "load", "restart"]
"""How a server got a policy: it had it already (`kept`), took all weights from memory (`transfer`), read them
from files (`reload`), read an adapter (`load`), or was started with it (`restart`)."""


@dataclass(frozen=True)
class ServedPolicy:
    """What a server is to serve: the weights in `folder` (see `write_serving_copy`), and an adapter for them
    where there is one. `dtype` is the number type that the server computes in.

    `copy` writes `folder` where it is not there yet. `in_memory` has the same weights in memory, for servers
    of our own.
    """

    policy_version: str
    folder: Path
    probe: Probe
    dtype: str
    adapter: ServedAdapter | None = None
    copy: ServingCopy | None = None
    in_memory: WeightsInMemory | None = None

    @property
    def tolerance(self) -> LogprobDifference:
        """How far server and trainer may differ: as much as the coarser of their number types allows."""
        return tolerance(self.probe.dtype, self.dtype)

    async def written(self) -> Path:
        """`folder`, once it is there."""
        if self.copy is not None:
            await asyncio.to_thread(self.copy.write)
        return self.folder


@dataclass(frozen=True)
class WeightSync:
    """How a server came to serve a policy, and how far its log-probabilities then were from the probe's.
    `not_transferred` is why it did not take weights that are in memory; empty where it did, or there are
    none."""

    url: str
    policy_version: str
    method: Method
    seconds: float
    difference: LogprobDifference
    not_transferred: str = ""


async def sync_weights(client: VllmClient, server: ManagedServer | None, policy: ServedPolicy) -> WeightSync:
    """Load the policy into a running server, unless the server says it has it; prove that it serves it.

    A server of our own (`server`) that fails the proof after a transfer reads the files; if it fails again,
    it is restarted with the policy, and must prove it once more. Raises `EngineError` when the server serves
    something else even then, `ServerFailure` when it fails.
    """
    started = time.perf_counter()
    asleep = await client.sleeping()
    if asleep:
        # The cache gets its memory last: reading weights may take more for a while than they keep.
        await client.wake_up("weights")
    # Somebody else's server may only have been out of reach: a reload would drop its cache for nothing.
    elif await client.weights_label() == policy.policy_version and await _has_adapter(client, policy):
        measured = await _measure(client, policy.probe)
        if measured.scores.within(policy.tolerance):
            return await _conclude(client, policy, "kept", measured, started)
    # From here on until the proof, weights and label would not agree: a hand-over that is cut off must not
    # leave the label of the policy before, since a small update is within the tolerance of its probe.
    await client.label_weights(f"loading {policy.policy_version}")
    not_transferred = ""
    if server is not None and policy.in_memory is not None:
        try:
            await client.transfer_weights(policy.in_memory)
            measured = await _answering(client, policy, asleep)
            if measured.scores.within(policy.tolerance):
                return await _conclude(client, policy, "transfer", measured, started)
            not_transferred = f"it did not serve the policy after the transfer ({measured.scores})"
        except (ServerFailure, EngineError) as error:
            not_transferred = str(error)
        asleep = asleep and await client.sleeping()
    method: Method = "reload" if policy.adapter is None else "load"
    try:
        if policy.adapter is None:
            await client.reload_weights(await policy.written())
        measured = await _answering(client, policy, asleep)
        served = measured.scores.within(policy.tolerance)
    except (ServerFailure, EngineError):
        # Some weights can only be read at a start: those of other shapes, or in a layout that is packed then.
        if server is None:
            raise
        served = False
    if server is not None and not served:
        await asyncio.to_thread(server.restart, await policy.written())
        await _put_adapter(client, policy)
        measured = await _measure(client, policy.probe)
        method = "restart"
    sync = await _conclude(client, policy, method, measured, started)
    return replace(sync, not_transferred=not_transferred)


async def _answering(client: VllmClient, policy: ServedPolicy, asleep: bool) -> Measured:
    """Let a server that has the weights answer requests, and measure how far it is from the probe."""
    if asleep:
        await client.wake_up("kv_cache")
    await _put_adapter(client, policy)
    return await _measure(client, policy.probe)


async def prove_restarted(client: VllmClient, policy: ServedPolicy, started: float) -> WeightSync:
    """The proof for a server that was started with this policy, at `started` by `time.perf_counter`."""
    await _put_adapter(client, policy)
    return await _conclude(client, policy, "restart", await _measure(client, policy.probe), started)


async def _conclude(
    client: VllmClient,
    policy: ServedPolicy,
    method: Method,
    measured: Measured,
    started: float,
) -> WeightSync:
    bound, difference = policy.tolerance, measured.scores
    refused = f"{client.url} does not serve policy {policy.policy_version} after a {method}"
    if math.isnan(difference.mean):
        raise EngineError(f"{refused}: its log-probabilities are not numbers")
    if not difference.within(bound):
        raise EngineError(
            f"{refused}: its log-probabilities differ from the trainer's by {difference.mean:.3g} nats on "
            f"average and {difference.maximum:.3g} at most; allowed are {bound.mean:g} and "
            f"{bound.maximum:g} (server in {policy.dtype}, trainer in {policy.probe.dtype})"
        )
    await prove_adapter(client, policy)
    if not measured.drawn.within(bound):
        raise EngineError(
            f"{client.url} does not report the distribution that it samples from: at temperature "
            f"{PROBE_TEMPERATURE:g} its log-probabilities differ from the trainer's by "
            f"{measured.drawn.mean:.3g} nats on average. Rows with such log-probabilities cannot be trained "
            "on: start the server with --logprobs-mode processed_logprobs --generation-config vllm"
        )
    # Last, so that no answer carries the label before the proof.
    await client.label_weights(policy.policy_version)
    return WeightSync(client.url, policy.policy_version, method, time.perf_counter() - started, difference)


@dataclass(frozen=True)
class Measured:
    """How far a server is from the probe, the worst of its copies: its `scores` of the probe's tokens, and
    what it reports, after temperature and with no token cut off, of the tokens that it has `drawn`."""

    scores: LogprobDifference
    drawn: LogprobDifference

    def or_worse(self, other: Measured) -> Measured:
        """The larger differences of both."""
        return Measured(self.scores.or_worse(other.scores), self.drawn.or_worse(other.drawn))


async def _measure(client: VllmClient, probe: Probe) -> Measured:
    async def of_copy(copy: int) -> Measured:
        answers = await asyncio.gather(
            *(client.probe(ids, PROBE_TEMPERATURE, seed, copy) for seed, ids in enumerate(probe.token_ids))
        )
        return Measured(compare(probe, [each.logprobs for each in answers]), compare_hot(probe, answers))

    try:
        return reduce(Measured.or_worse, await asyncio.gather(*map(of_copy, range(client.copies))))
    except UndefinedLogprobs:
        nothing = LogprobDifference(math.nan, math.nan)
        return Measured(nothing, nothing)
