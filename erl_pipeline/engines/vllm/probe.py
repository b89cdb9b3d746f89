"""Proving that a server samples from the policy it should: log-probabilities of a fixed set of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import PreTrainedModel

from erl_pipeline.engines.sampling import draw_tokens, uniform_stream

_SEED = 0
_SEQUENCES = 8
_PROMPT_LENGTH = 8
_LENGTH = 24
HOT = 2.0
"""The highest temperature that vLLM takes: there a log-probability before temperature differs most."""


@dataclass(frozen=True)
class Probe:
    """Sequences `[sequence][time]` and what the trainer's model says of how they go on.

    `logprobs[i]`, in nats at temperature 1, belong to the last tokens of `token_ids[i]`, each given all
    tokens before it. `dtype` is the number type that the trainer computed in, such as `bfloat16`.
    `hot_logprobs` are of every token that could follow each sequence, at temperature `HOT`:
    `[sequences, vocabulary]`.
    """

    token_ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[float, ...], ...]
    dtype: str
    hot_logprobs: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class Difference:
    """How far two sets of log-probabilities lie apart: mean and maximum of |difference|, in nats."""

    mean: float
    maximum: float

    def within(self, tolerance: Difference) -> bool:
        """Whether neither exceeds its bound; a difference that is no number exceeds every bound."""
        return self.mean <= tolerance.mean and self.maximum <= tolerance.maximum


TOLERANCES = {
    "float32": Difference(mean=1e-4, maximum=1e-3),
    "float16": Difference(mean=3e-2, maximum=3e-1),
    "bfloat16": Difference(mean=2e-1, maximum=2.0),
}
"""How far server and trainer may lie apart where the coarser of the two computes in this number type.

About three times what rounding alone gave with 135M parameters in bfloat16: 0.05 to 0.08 on average, at
most 0.7. Small updates move less than that; what shows a weight that was not loaded is that hand-overs
set all weights to 0 first, which puts log-probabilities off by nats.
"""


@torch.inference_mode()
def make_probe(model: PreTrainedModel) -> Probe:
    """The probe of this model: fixed prompts of arbitrary tokens, and how the model itself continues them.

    Its own continuations, because in coarse number types the log-probability of a token that the model
    would never say is mostly rounding error.
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
    # Once more in one pass, as training computes them.
    logits = model(input_ids=tokens, use_cache=False).logits[:, _PROMPT_LENGTH - 1 :]
    model.train(was_training)
    continuations = tokens[:, _PROMPT_LENGTH:]
    logprobs = (
        torch.log_softmax(logits[:, :-1].float(), dim=-1).gather(2, continuations[..., None]).squeeze(2)
    )
    return Probe(
        token_ids=tuple(tuple(row) for row in tokens.tolist()),
        logprobs=tuple(tuple(row) for row in logprobs.tolist()),
        dtype=str(model.dtype).removeprefix("torch."),
        hot_logprobs=torch.log_softmax(logits[:, -1].float() / HOT, dim=-1).cpu().numpy(),
    )


def tolerance(trainer_dtype: str, server_dtype: str) -> Difference:
    """The looser of the two number types' tolerances."""
    return max(TOLERANCES[trainer_dtype], TOLERANCES[server_dtype], key=lambda bound: bound.maximum)


def compare(probe: Probe, logprobs: Sequence[Sequence[float]]) -> Difference:
    """How far `logprobs`, of the last tokens of the probe's sequences, lie from the trainer's.

    There may be more of them than the probe has; those of earlier tokens are left out.
    """
    theirs = [row[-len(mine) :] for row, mine in zip(logprobs, probe.logprobs, strict=True)]
    distance = np.abs(np.asarray(probe.logprobs) - np.asarray(theirs))
    return Difference(float(distance.mean()), float(distance.max()))


def compare_hot(probe: Probe, drawn: Sequence[tuple[int, float]]) -> Difference:
    """How far what a server says of the tokens that it drew after the probe's sequences, at temperature
    `HOT`, lies from the trainer's log-probabilities of them."""
    mine = [probe.hot_logprobs[row, token] for row, (token, _) in enumerate(drawn)]
    distance = np.abs(np.asarray(mine) - np.asarray([logprob for _, logprob in drawn]))
    return Difference(float(distance.mean()), float(distance.max()))
