"""Drawing tokens with a random stream for each sequence, and a probe that identifies a policy's weights to an
engine in another process."""

from __future__ import annotations

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from erl_pipeline.engines.interface import PROBE_TEMPERATURE, Probe, ServedAdapter, ServedCheckpoint
from erl_pipeline.policies.adapters import adapted_modules, adapter_rank, has_adapter, without_adapter
from erl_pipeline.policies.pretrained import LoadedPolicy
from storage.errors import EngineError

_LARGEST_BLOCK = 512  # tokens whose weights are summed before they are searched


def uniform_stream(seed: int, length: int) -> np.ndarray:
    """`length` uniforms in [0, 1) that depend on `seed` alone, not on batch or order."""
    return np.random.Generator(np.random.Philox(seed)).random(length)


def draw_tokens(
    logits: torch.Tensor, temperatures: torch.Tensor, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token for each row by inversion of the cumulative distribution.

    Args:
        logits: `[batch, vocabulary]`.
        temperatures: `[batch]`; 0 takes the most probable token.
        uniforms: `[batch]`, float64 in [0, 1).

    Returns:
        Token ids `[batch]` and their log-probabilities `[batch]` in nats, after temperature (at
        temperature 1 where it is 0). Sums run in float64, so that the tail of a large vocabulary
        is not lost to rounding. The inversion finds a block of tokens first, then the token in it.

    Raises EngineError for logits that give no distribution.
    """
    greedy = temperatures == 0
    scale = torch.where(greedy, torch.ones_like(temperatures), temperatures)
    scaled = logits.float() / scale[:, None]  # [batch, vocabulary]
    largest = scaled.amax(dim=-1, keepdim=True)
    weights = (scaled - largest).exp_()
    size = min(_LARGEST_BLOCK, weights.shape[-1])
    if missing := -weights.shape[-1] % size:
        weights = torch.nn.functional.pad(weights, (0, missing))
    weights = weights.unflatten(1, (-1, size))  # [batch, blocks, block]
    cumulative = weights.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)  # [batch, blocks]
    total = cumulative[:, -1:]
    if not bool(total.isfinite().all()):
        raise EngineError("the policy's logits are not finite: its weights are damaged, or training diverged")
    targets = uniforms[:, None] * total
    block = _invert(cumulative, targets)
    below = torch.nn.functional.pad(cumulative, (1, 0)).gather(1, block)
    rows = torch.arange(len(weights), device=weights.device)
    within = weights[rows, block[:, 0]].double().cumsum(dim=-1)  # [batch, block]
    tokens = (block * size + _invert(within, targets - below))[:, 0]
    if bool(greedy.any()):
        tokens = torch.where(greedy, scaled.argmax(dim=-1), tokens)
    normalizers = largest[:, 0] + total[:, 0].log().float()
    return tokens, scaled.gather(1, tokens[:, None])[:, 0] - normalizers


def _invert(cumulative: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """First places `[batch, 1]` where the sums exceed the targets; never a place of weight 0.

    Rounding may put a target at the very end of the sums: it then belongs to the last place with a weight.
    """
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())
    return torch.minimum(torch.searchsorted(cumulative, targets, right=True), last)


_SEED = 0
_SEQUENCES = 8
_PROMPT_LENGTH = 8
_LENGTH = 24


def served_checkpoint(
    policy: LoadedPolicy, checkpoint_id: str, base_folder: Path, adapter_folder: Path | None
) -> ServedCheckpoint:
    """The checkpoint `checkpoint_id`, whose weights `policy` has.

    `base_folder` has the weights without an adapter, and `adapter_folder` the adapter, where one was saved.
    """
    adapter = None
    if has_adapter(policy.model):
        adapter = ServedAdapter(adapter_folder, adapter_rank(policy.model), adapted_modules(policy.model))
    return ServedCheckpoint(
        checkpoint_id=checkpoint_id,
        base_folder=base_folder,
        probe=make_probe(policy.model),
        end_token_ids=policy.eos_token_ids,
        adapter=adapter,
    )


@torch.inference_mode()
def make_probe(model: PreTrainedModel) -> Probe:
    """The probe of this model: fixed prompts of arbitrary tokens, and how the model itself continues them.

    The continuations are the model's own, because in coarse number types the log-probability of a token that
    the model would never say is mostly rounding error.
    """
    prompts = np.random.Generator(np.random.Philox(_SEED)).integers(
        model.config.vocab_size, size=(_SEQUENCES, _PROMPT_LENGTH)
    )
    uniforms = np.stack([uniform_stream(seed, _LENGTH) for seed in range(_SEQUENCES)])
    was_training = model.training
    model.eval()
    tokens = torch.from_numpy(prompts).to(model.device)  # [sequences, time]
    ones = torch.ones(_SEQUENCES, device=model.device)
    while tokens.shape[1] < _LENGTH:
        logits = model(input_ids=tokens, use_cache=False, logits_to_keep=1).logits[:, -1]
        drawn = torch.from_numpy(uniforms[:, tokens.shape[1]]).to(model.device)
        tokens = torch.cat([tokens, draw_tokens(logits, ones, drawn)[0][:, None]], dim=1)
    # Again, but in one pass, as training computes log-probabilities.
    logits = model(input_ids=tokens, use_cache=False).logits
    probe = Probe(
        token_ids=tuple(tuple(row) for row in tokens.tolist()),
        logprobs=_continuation_logprobs(logits, tokens),
        dtype=str(model.dtype).removeprefix("torch."),
        hot_logprobs=torch.log_softmax(logits[:, -1].float() / PROBE_TEMPERATURE, dim=-1).cpu().numpy(),
    )
    if has_adapter(model):
        with without_adapter(model):
            logits = model(input_ids=tokens, use_cache=False).logits
        probe = replace(probe, base_logprobs=_continuation_logprobs(logits, tokens))
    model.train(was_training)
    return probe


def _continuation_logprobs(logits: torch.Tensor, tokens: torch.Tensor) -> tuple[tuple[float, ...], ...]:
    """Log-probabilities of the tokens after the prompts. `logits`: `[sequences, time, vocabulary]`."""
    logprobs = torch.log_softmax(logits[:, _PROMPT_LENGTH - 1 : -1].float(), dim=-1)
    chosen = logprobs.gather(2, tokens[:, _PROMPT_LENGTH:, None]).squeeze(2)
    return tuple(tuple(row) for row in chosen.tolist())
