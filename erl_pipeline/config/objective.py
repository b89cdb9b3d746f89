"""Settings of the reinforcement-learning objective."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from erl_pipeline.config.base import Settings


class BypassCorrection(Settings):
    """The ratio is taken against the stored log-probabilities of the behaviour policy, so that one clip
    range answers for both the change of the policy and the mismatch of sampler and trainer."""

    type: Literal["bypass"] = "bypass"


class DecoupledCorrection(Settings):
    """The ratio is taken against log-probabilities that the trainer computes before its first step; the
    mismatch of sampler and trainer is corrected by a separate importance weight, as in decoupled PPO
    (Hilton et al. 2021, arXiv 2110.00641)."""

    type: Literal["decoupled"]
    level: Literal["token", "sequence"] = "token"
    """`token`: one weight for each token. `sequence`: the product over a sequence, for all its tokens."""
    mode: Literal["truncate", "mask"] = "truncate"
    """`truncate`: weights above the cap become the cap (truncated importance sampling, Ionides 2008;
    Yao et al. 2025). `mask`: tokens with weights above the cap leave the loss."""
    cap: float = Field(default=2.0, gt=1.0)
    """Largest importance weight."""


CorrectionConfig = Annotated[BypassCorrection | DecoupledCorrection, Field(discriminator="type")]


class ObjectiveConfig(Settings):
    """A GRPO-family policy-gradient objective (arXiv 2402.03300)."""

    advantage_normalization: Literal["std", "mean"] = "std"
    """`std`: rewards of a group minus their mean, over their standard deviation (GRPO, arXiv 2402.03300).
    `mean`: minus their mean only (Dr. GRPO, arXiv 2503.20783)."""
    clip_low: float = Field(default=0.2, gt=0.0, lt=1.0)
    """The ratio counts down to `1 - clip_low` where the advantage is negative (PPO, arXiv 1707.06347,
    eq. 7)."""
    clip_high: float = Field(default=0.2, gt=0.0)
    """The ratio counts up to `1 + clip_high` where the advantage is positive; more than `clip_low` is the
    clip-higher of DAPO (arXiv 2503.14476)."""
    dual_clip: float | None = Field(default=None, gt=1.0)
    """Bounds the loss of a negative advantage at `dual_clip` times it (arXiv 1912.09729); `null` does not."""
    kl_coefficient: float = Field(default=0.0, ge=0.0)
    """Weight of the KL divergence to the reference policy; 0 loads no reference."""
    kl_estimator: Literal["k2", "k3"] = "k3"
    """Estimator of that divergence (Schulman 2020, "Approximating KL divergence"). `k1` is not allowed: its
    gradient as a loss is zero in expectation."""
    entropy_coefficient: float = Field(default=0.0, ge=0.0)
    """Weight of the entropy bonus (PPO, arXiv 1707.06347, eq. 9)."""
    loss_normalization: Literal["token_mean", "sequence_mean", "sequence_sum"] = "token_mean"
    """How token losses of an optimizer batch become one number. `token_mean`: mean over all tokens (DAPO).
    `sequence_mean`: mean over sequences of the mean over tokens (GRPO). `sequence_sum`: mean over
    sequences of the sum over tokens, which is Dr. GRPO up to its constant."""
    correction: CorrectionConfig = BypassCorrection()
    """What is done about the policy that sampled not being the one that is trained."""
