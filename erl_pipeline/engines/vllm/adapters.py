"""Policies that are LoRA adapters: the server keeps the base's weights and is given a small adapter.

An adapter is loaded under its policy version, a name that no other adapter ever has, and each request
names it: a request for an adapter that is not there is refused, and vLLM keeps prompts that were computed
with different adapters apart. Requests that name none are answered by the base.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from erl_pipeline.engines.vllm.client import VllmClient
from erl_pipeline.engines.vllm.probe import Probe
from erl_pipeline.policies.adapters import without_adapter
from storage.errors import EngineError

ADAPTER_ENVIRONMENT = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
"""Variables of a server that is to load adapters while it runs."""

_SERVED_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_SHARE_NEEDED = 0.5
_STANDARD_ERRORS = 5.0

Logprobs = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class ServedAdapter:
    """What a policy adds to the weights that the server was started with, and keeps.

    `folder` has `adapter_model.safetensors` and `adapter_config.json`; None where the policy is those
    weights themselves. `base_logprobs` are what the trainer's model says of the probe without its adapter.
    """

    folder: Path | None
    base_logprobs: Logprobs


@dataclass(frozen=True)
class AdapterShape:
    """What a server must make room for: the adapters' rank, and the names of the modules that they change."""

    rank: int
    modules: tuple[str, ...]


def adapter_arguments(shape: AdapterShape) -> list[str]:
    """Arguments of a server that serves one adapter of this shape at a time."""
    room = next(served for served in _SERVED_RANKS if served >= shape.rank)
    # Where it could adapt the output head too, vLLM 0.32 dies of requests for log-probabilities of a prompt.
    modules = ["--lora-target-modules", *shape.modules]
    return ["--enable-lora", *modules, "--max-loras=1", f"--max-lora-rank={room}"]


def score_base(model: PreTrainedModel, probe: Probe) -> Logprobs:
    """What the model without its adapter says of the probe's continuations, as in `Probe.logprobs`."""
    tokens = torch.tensor(probe.token_ids, device=model.device)  # [sequences, time]
    length = len(probe.logprobs[0])
    with without_adapter(model), torch.inference_mode():
        logits = model(input_ids=tokens, use_cache=False).logits[:, -length - 1 : -1]
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    return tuple(map(tuple, logprobs.gather(2, tokens[:, -length:, None]).squeeze(2).tolist()))


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
                f"{error}. A server takes LoRA adapters when it was started with {variables}, --enable-lora, "
                "--lora-target-modules and a --max-lora-rank that is high enough"
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
    """Raise `EngineError` where the server, asked for the adapter, can be seen not to apply it.

    The tolerance of log-probabilities in coarse number types is wider than what an adapter changes at
    first. But how much server and trainer differ on the base says how large rounding is, and the mean over
    the probe's tokens tells a smaller change from none.
    """
    if adapter.folder is None:
        return
    base, adapted = [
        np.asarray(
            await asyncio.gather(*(client.score(ids, base=of_base) for ids in probe.token_ids)), dtype=float
        )[:, -len(probe.logprobs[0]) :]
        for of_base in (True, False)
    ]
    trainer_base = np.asarray(adapter.base_logprobs)
    share, error = applied_share(
        trainer=np.asarray(probe.logprobs) - trainer_base, server=adapted - base, rounding=base - trainer_base
    )
    if _STANDARD_ERRORS * error <= _SHARE_NEEDED and not share >= _SHARE_NEEDED:
        raise EngineError(
            f"{client.url} does not apply the adapter of policy {policy_version}: of the change that it "
            f"makes to the trainer's log-probabilities the server shows {share:.2f} (standard error "
            f"{error:.2g}), where all would be 1"
        )


def applied_share(trainer: np.ndarray, server: np.ndarray, rounding: np.ndarray) -> tuple[float, float]:
    """How much of the trainer's change of log-probabilities the server shows, and its standard error.

    The least-squares factor between the two changes: 1 where the server applies the adapter, 0 where it
    does not. `rounding` is by how much they differ without an adapter; all have one shape.
    """
    size = float(np.sum(trainer**2))
    if size == 0.0:
        return 0.0, math.inf
    # Rounding enters twice: with the adapter and without.
    error = math.sqrt(2.0 * float(np.mean(rounding**2)) / size)
    return float(np.sum(trainer * server)) / size, error
