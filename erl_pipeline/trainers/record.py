"""What a training did with each sequence that it was given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from storage.tables.scored import NotScored

NotTrained = Literal[
    "never_trained",
    NotScored,
    "too_old",
    "no_tokens",
    "zero_weight",
    "zero_advantage",
    "not_drawn",
]
"""Why a sequence was not trained.

- `never_trained`: its role is never trained, such as a judge's, so that no trainer was given it
- `environment_error`, `environment_timeout`, `scorer_error`: the attempt, or the one that a text led to, was
  not scored, so that no trainer was given it
- `too_old`: the policy that sampled it is too old (`pipeline.max_age`), so that no trainer was given it
- `no_tokens`: the policy sampled none of its tokens
- `zero_weight`: the objective gives its role the weight 0
- `zero_advantage`: its reward is the mean of its group, and nothing but the advantage gives it a loss
- `not_drawn`: the supervised steps were over before its turn came
"""


@dataclass(frozen=True)
class SequenceRecord:
    """One sequence in one training. Numbers are None where nothing was trained or measured.

    Means are over the trained tokens of all steps in which the sequence took part.
    """

    weight: float
    """The factor of its losses: its own weight times that of its role."""
    not_trained: NotTrained | None = None
    steps: int = 0
    """Optimizer steps in which it took part."""
    trained_tokens: int = 0
    """Tokens with a loss, counted once for each step."""
    mean_ratio: float | None = None
    """Mean probability ratio of the surrogate."""
    clipped_share: float | None = None
    """Share of tokens at which the clip removed the gradient."""
    entropy: float | None = None
    """Mean entropy, in nats, of the trainer's distributions at its tokens."""
    mismatch: float | None = None
    """Mean |log-probability of the trainer - that of the sampler| before the first step, nats. None where its
    first pass came after a step and the objective needed no log-probabilities from before."""
    loss: float | None = None
    """Its share of the loss of an optimizer batch; the mean over its steps."""
    token_logprobs: tuple[float, ...] | None = None
    """Log-probability that the trainer gave each response token when it first saw it, 0 where the mask is 0;
    None unless tokens are recorded."""
    token_entropies: tuple[float, ...] | None = None
    """The same for the entropies."""
