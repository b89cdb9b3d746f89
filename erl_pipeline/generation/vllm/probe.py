"""Proving that a server samples from the policy it should: log-probabilities of a fixed set of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

_SEED = 0
_SEQUENCES = 8
_LENGTH = 24


@dataclass(frozen=True)
class Probe:
    """Sequences `[sequence][time]` and what the trainer's model says of them.

    `logprobs[i][t]`, in nats at temperature 1, belongs to `token_ids[i][t + 1]` given the tokens before.
    `dtype` is the number type that the trainer computed in, such as `bfloat16`.
    """

    token_ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[float, ...], ...]
    dtype: str


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
    "float16": Difference(mean=5e-3, maximum=5e-2),
    "bfloat16": Difference(mean=4e-2, maximum=4e-1),
}
"""How far server and trainer may lie apart where the coarser of the two computes in this number type."""


@torch.inference_mode()
def make_probe(model: PreTrainedModel) -> Probe:
    """The probe of this model: the same sequences for all models of one vocabulary."""
    ids = np.random.Generator(np.random.Philox(_SEED)).integers(
        model.config.vocab_size, size=(_SEQUENCES, _LENGTH)
    )
    tokens = torch.from_numpy(ids).to(model.device)  # [sequences, time]
    was_training = model.training
    logits = model.eval()(input_ids=tokens).logits[:, :-1]  # [sequences, time - 1, vocabulary]
    model.train(was_training)
    logprobs = torch.log_softmax(logits.float(), dim=-1).gather(2, tokens[:, 1:, None]).squeeze(2)
    return Probe(
        token_ids=tuple(tuple(row) for row in ids.tolist()),
        logprobs=tuple(tuple(row) for row in logprobs.tolist()),
        dtype=str(model.dtype).removeprefix("torch."),
    )


def tolerance(trainer_dtype: str, server_dtype: str) -> Difference:
    """The looser of the two number types' tolerances."""
    return max(TOLERANCES[trainer_dtype], TOLERANCES[server_dtype], key=lambda bound: bound.maximum)


def compare(probe: Probe, logprobs: Sequence[Sequence[float]]) -> Difference:
    """How far `logprobs`, of the probe's sequences by somebody else, lie from the trainer's."""
    distance = np.abs(np.asarray(probe.logprobs) - np.asarray(logprobs))
    return Difference(float(distance.mean()), float(distance.max()))
