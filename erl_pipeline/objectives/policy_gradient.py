"""The parts of the policy loss, token by token: surrogates, importance weights, losses of replayed tokens and
the KL divergence; and the weights with which tokens make up the loss of an optimizer batch.

Surrogates are found by name, in the group `erl_pipeline.surrogates`. A process that only plans looks the
names up too, so torch is not imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from erl_pipeline.config.objective import DecoupledCorrection
from erl_pipeline.config.plugins import plugins
from storage.errors import InputError

if TYPE_CHECKING:
    import torch

LossNormalization = Literal["token_mean", "sequence_mean", "sequence_sum"]
LOG_RATIO_BOUND = 20.0
"""Log-ratios are clamped to this many nats on both sides, so that their exponentials stay finite."""


def bounded(log_ratio: torch.Tensor) -> torch.Tensor:
    """Log-ratios clamped to `LOG_RATIO_BOUND`. Same shape."""
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


@dataclass(frozen=True)
class Surrogate:
    """`loss`: `[tokens]`, to be minimised. `ratio`: `[tokens]`, without gradient. `clipped`: `[tokens]`,
    true where a bound is active: the token has no gradient, or under CISPO one weighted by the bound."""

    loss: torch.Tensor
    ratio: torch.Tensor
    clipped: torch.Tensor


class SurrogateFunction(Protocol):
    """The loss of each token, before importance weight and normalisation. Any package can add one: a function
    that an entry point of `erl_pipeline.surrogates` names."""

    def __call__(
        self,
        logprobs: torch.Tensor,
        old_logprobs: torch.Tensor,
        advantages: torch.Tensor,
        *,
        lowest_ratio: torch.Tensor,
        highest_ratio: torch.Tensor,
        dual_clip: torch.Tensor | None = None,
    ) -> Surrogate:
        """The losses of some tokens of a batch, each by itself: which tokens come together says nothing.

        Args:
            logprobs: `[tokens]`, nats, of the policy that is trained; gradients flow into them alone.
            old_logprobs: `[tokens]`, nats, of the policy that the ratio is taken against.
            advantages: `[tokens]`, each that of its trajectory.
            lowest_ratio, highest_ratio: `[tokens]`, the clip range of the token's role.
            dual_clip: `[tokens]`, infinite where a role has none; None where no role has one.
        """


def surrogate_named(name: str) -> SurrogateFunction:
    """The surrogate of an entry point; it raises InputError where its function gives other shapes than
    `[tokens]`.

    Raises ConfigError for a name that is unknown or cannot be used.
    """
    function: SurrogateFunction = plugins("surrogates")[name].value

    def checked(logprobs: torch.Tensor, *others: Any, **bounds: Any) -> Surrogate:
        found = function(logprobs, *others, **bounds)
        for part in ("loss", "ratio", "clipped"):
            shape = tuple(getattr(found, part).shape)
            if shape != tuple(logprobs.shape):
                raise InputError(
                    f"objective.surrogate: {name} gave a {part} of shape {list(shape)} for {len(logprobs)} "
                    "tokens; it must give one number for each"
                )
        return found

    return checked


def sequence_log_ratios(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, sequence: torch.Tensor
) -> torch.Tensor:
    """The logarithm of each sequence's ratio, at each of its tokens: the mean of its tokens' log-ratios,
    which is that of the geometric mean of their ratios (GSPO, arXiv 2507.18071, eq. 7).

    All `[tokens]`: log-probabilities in nats; `sequence` as in `importance_weights`.
    """
    log_ratios = logprobs - old_logprobs
    none = log_ratios.new_zeros(log_ratios.shape)
    sums = none.index_add(0, sequence, log_ratios)
    counts = none.index_add(0, sequence, log_ratios.new_ones(log_ratios.shape))
    return (sums / counts)[sequence]  # Numbers that no sequence has are 0 / 0, and chosen nowhere.


def clipped_surrogate(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    lowest_ratio: torch.Tensor,
    highest_ratio: torch.Tensor,
    dual_clip: torch.Tensor | None = None,
) -> Surrogate:
    """`-min(r A, clip(r, lowest, highest) A)` with `r = exp(logprobs - old_logprobs)`.

    PPO, arXiv 1707.06347, eq. 7, with a range that need not be symmetric (DAPO, arXiv 2503.14476, eq. 10):
    `lowest` is `1 - clip_low` and `highest` is `1 + clip_high`. `dual_clip` c bounds the surrogate of a
    negative advantage from below by `c A` (arXiv 1912.09729, eq. 5); infinity bounds nothing.
    All tensors: `[tokens]`; gradients flow into `logprobs` alone.
    """
    ratio = bounded(logprobs - old_logprobs).exp()
    unclipped = ratio * advantages
    within_range = ratio.clamp(lowest_ratio, highest_ratio) * advantages
    surrogate = unclipped.minimum(within_range)
    clipped = within_range < unclipped
    if dual_clip is not None:
        bound = dual_clip * advantages
        beyond = (advantages < 0) & (surrogate < bound)
        surrogate = bound.where(beyond, surrogate)
        clipped = clipped | beyond
    return Surrogate(loss=-surrogate, ratio=ratio.detach(), clipped=clipped)


def cispo_surrogate(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    lowest_ratio: torch.Tensor,
    highest_ratio: torch.Tensor,
    dual_clip: torch.Tensor | None = None,
) -> Surrogate:
    """`-sg(clip(r, lowest, highest)) A log p` with `r = exp(logprobs - old_logprobs)`.

    CISPO (arXiv 2506.13585, eq. 4); Complementary RL trains its extractor with it (arXiv 2603.17621, eq. 3).

    The gradient of a token is `clip(r) A grad log p`, not zero where the ratio is clipped; `dual_clip`
    has no meaning. All tensors: `[tokens]`; gradients flow into `logprobs` alone.
    """
    ratio = bounded(logprobs.detach() - old_logprobs).exp()
    weight = ratio.clamp(lowest_ratio, highest_ratio)
    return Surrogate(loss=-weight * advantages * logprobs, ratio=ratio, clipped=weight != ratio)


@dataclass(frozen=True)
class ImportanceWeights:
    """`weights`: `[tokens]`, after truncation or masking. `capped`: `[tokens]`, true where the raw weight
    exceeded the cap, or fell below the floor."""

    weights: torch.Tensor
    capped: torch.Tensor


def importance_weights(
    old_logprobs: torch.Tensor,
    behaviour_logprobs: torch.Tensor,
    sequence: torch.Tensor,
    correction: DecoupledCorrection,
) -> ImportanceWeights:
    """Weights `exp(old - behaviour)` of the trainer's policy over the sampler's.

    At `level` "sequence" the log-ratios of a sequence's tokens are summed and all its tokens get the
    product. Above `cap`, `mode` "truncate" sets the weight to the cap (truncated importance sampling,
    Ionides 2008; for the mismatch of engines Yao et al. 2025, "Your efficient RL framework secretly
    brings you off-policy training") and "mask" sets it to 0. Weights below `floor` become 0 too.

    Args:
        old_logprobs, behaviour_logprobs: `[tokens]`, nats.
        sequence: `[tokens]`, the number of the sequence that a token belongs to, from 0; each number up
            to the largest occurs.
    """
    log_ratio = old_logprobs - behaviour_logprobs
    if correction.level == "sequence":
        # Each sequence has a token, so there are no more sequences than tokens.
        totals = log_ratio.new_zeros(log_ratio.shape)
        log_ratio = totals.index_add(0, sequence, log_ratio)[sequence]
    raw = bounded(log_ratio).exp()
    capped = raw > correction.cap
    if correction.floor is not None:
        capped = capped | (raw < correction.floor)
    truncates = correction.mode == "truncate"
    weights = raw.clamp(max=correction.cap) if truncates else raw.masked_fill(capped, 0.0)
    return ImportanceWeights(weights, capped)


@dataclass(frozen=True)
class ReplayedTokens:
    """All `[tokens]`: `loss`, to be minimised; `ratio` w, and `weight` g(w) that replaces it, both without
    gradient."""

    loss: torch.Tensor
    ratio: torch.Tensor
    weight: torch.Tensor


def replay_surrogate(
    logprobs: torch.Tensor,
    stored_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    shaping_beta: float | None = None,
    weight_cap: float | None = None,
) -> ReplayedTokens:
    """`-A g(w)` with `w = exp(logprobs - stored_logprobs)`.

    - `shaping_beta`: g(w) = w / (w + beta), the policy shaping of ExGRPO (arXiv 2510.02245, eq. 4). Its
      gradient weighs `grad log p` by beta w / (w + beta)^2: most where the policy has come to find a token
      unlikely, and little near w = 1.
    - `weight_cap`: g(w) is min(w, cap), and weighs `grad log p` by just that, above the cap too (truncated
      importance sampling, Ionides 2008).
    - neither: g(w) = w.

    All tensors: `[tokens]`, nats; gradients flow into `logprobs` alone. Not both may be given.
    """
    if shaping_beta is not None and weight_cap is not None:
        raise ValueError("shaping_beta and weight_cap exclude each other")
    ratio = bounded(logprobs - stored_logprobs).exp()
    if shaping_beta is not None:
        weight = ratio / (ratio + shaping_beta)
        return ReplayedTokens(-advantages * weight, ratio.detach(), weight.detach())
    if weight_cap is None:
        return ReplayedTokens(-advantages * ratio, ratio.detach(), ratio.detach())
    weight = ratio.detach().clamp(max=weight_cap)
    # 1 in value; its gradient is that of the log-probability.
    carrier = 1.0 + logprobs - logprobs.detach()
    return ReplayedTokens(-advantages * weight * carrier, ratio.detach(), weight)


def kl_estimate(
    logprobs: torch.Tensor, other_logprobs: torch.Tensor, estimator: Literal["k1", "k2", "k3"]
) -> torch.Tensor:
    """Estimate KL(policy || other) in nats at each token that `policy` sampled. All tensors: `[tokens]`.

    Schulman 2020, "Approximating KL divergence".

    With `d = logprobs - other_logprobs`: `k1 = d` is unbiased and may be negative; `k2 = d^2 / 2` has
    little variance and, as a loss, the gradient of the divergence; `k3 = exp(-d) - 1 + d` is unbiased
    and never negative (the GRPO term, arXiv 2402.03300, eq. 4).
    """
    difference = bounded(logprobs - other_logprobs)
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    return (-difference).expm1() + difference


def kl_returns(logprobs: torch.Tensor, reference_logprobs: torch.Tensor, coefficient: float) -> torch.Tensor:
    """What each token of one sequence gets by KL in the reward: minus `coefficient` times the sum of `k1`
    over it and the tokens after it, undiscounted (InstructGPT, arXiv 2203.02155, eq. 2, token by token as
    OpenRLHF's `compute_reward` and `get_cumulative_returns`).

    `logprobs`: of the policy that sampled; all `[tokens]`, nats.
    """
    return -coefficient * kl_estimate(logprobs, reference_logprobs, "k1").flip(0).cumsum(0).flip(0)


def token_weights(
    token_counts: Sequence[int], normalization: LossNormalization, length: int = 1
) -> list[float]:
    """The factor of each token's loss, one for each sequence of a whole optimizer batch.

    The loss of the batch is the sum over its tokens of factor times token loss. All sequences of the batch
    count, whatever their role. Since the factors are fixed before the batch is cut, microbatches do not
    change the gradient.

    - `token_mean`: `1 / tokens of the batch` (DAPO, arXiv 2503.14476, eq. 12)
    - `sequence_mean`: `1 / (sequences * tokens of the sequence)` (GRPO, arXiv 2402.03300, eq. 3)
    - `sequence_sum`: `1 / (sequences * length)` (Dr. GRPO, arXiv 2503.20783)

    Args:
        token_counts: trained tokens of each sequence, all at least 1.
    """
    if normalization == "token_mean":
        return [1.0 / sum(token_counts)] * len(token_counts)
    if normalization == "sequence_mean":
        return [1.0 / (len(token_counts) * count) for count in token_counts]
    return [1.0 / (len(token_counts) * length)] * len(token_counts)
