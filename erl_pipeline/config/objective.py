"""Settings of the reinforcement-learning objective."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from erl_pipeline.config.base import Settings
from erl_pipeline.config.distillation import DISTILLED
from erl_pipeline.config.plugins import function_of
from storage.errors import ConfigError

OBSERVED = "observed"
"""The role of what an environment said, in an update whose policy also learns to predict it
(`objective.observation_coefficient`)."""

UNSAMPLED = frozenset({DISTILLED, OBSERVED})
"""Roles of sequences whose trained tokens no policy sampled: they are trained by supervision."""


class BypassCorrection(Settings):
    """The ratio is computed against the stored log-probabilities of the behaviour policy. So one clip range
    limits both the change of the policy and the mismatch between sampler and trainer."""

    type: Literal["bypass"] = "bypass"


class DecoupledCorrection(Settings):
    """The ratio is computed against log-probabilities that the trainer computes before its first step. A
    separate importance weight corrects the mismatch between sampler and trainer, as in decoupled PPO (Hilton
    et al. 2021, arXiv 2110.00641)."""

    type: Literal["decoupled"]
    level: Literal["token", "sequence"] = "token"
    """`token`: one weight for each token. `sequence`: all tokens of a sequence get the product over it."""
    mode: Literal["truncate", "mask"] = "truncate"
    """`truncate`: weights above the cap become the cap (truncated importance sampling, Ionides 2008;
    Yao et al. 2025). `mask`: tokens with weights above the cap are left out of the loss."""
    cap: float = Field(default=2.0, gt=1.0)
    """Largest importance weight."""
    floor: float | None = Field(default=None, gt=0.0, lt=1.0, exclude_if=lambda floor: floor is None)
    """Tokens with weights below it are left out of the loss too, so that a mismatch counts on both sides
    (IcePop, Zhao et al. 2025, "Small leak can sink a great ship"); only with `mode: mask`. `null`: none
    are."""

    @model_validator(mode="after")
    def _masks_on_both_sides(self) -> DecoupledCorrection:
        if self.floor is not None and self.mode != "mask":
            raise ValueError(f"floor: {self.floor:g}; allowed with mode: {self.mode} is null; set mode: mask")
        return self


CorrectionConfig = Annotated[BypassCorrection | DecoupledCorrection, Field(discriminator="type")]


@dataclass(frozen=True)
class RoleTerms:
    """The numbers of the objective for trajectories of one role; see `ObjectiveConfig` for each."""

    clip_low: float
    clip_high: float
    dual_clip: float | None
    kl_coefficient: float
    entropy_coefficient: float
    weight: float

    @property
    def regularized(self) -> bool:
        """Whether a trajectory has a loss even with advantage 0."""
        return self.kl_coefficient > 0 or self.entropy_coefficient > 0


class RoleObjective(Settings):
    """Settings for trajectories of one role. `null`: the value of `objective`."""

    clip_low: float | None = Field(default=None, gt=0.0, lt=1.0)
    """As `objective.clip_low`."""
    clip_high: float | None = Field(default=None, gt=0.0)
    """As `objective.clip_high`."""
    dual_clip: float | None = Field(default=None, gt=1.0)
    """As `objective.dual_clip`. To have it for some roles only, set it for those and not in `objective`."""
    kl_coefficient: float | None = Field(default=None, ge=0.0)
    """As `objective.kl_coefficient`."""
    entropy_coefficient: float | None = Field(default=None, ge=0.0)
    """As `objective.entropy_coefficient`."""
    weight: float = Field(default=1.0, ge=0.0)
    """Multiplies all losses of the role; 0 leaves its trajectories out of the update."""


class LengthPenalty(Settings):
    """Answers near the limit lose reward (soft overlong punishment of DAPO, arXiv 2503.14476, eq. 13): with y
    the trained tokens of a trajectory, nothing up to `limit - margin` tokens, from there linearly up to 1 at
    `limit`, and 1 beyond."""

    limit: int = Field(ge=1)
    """Tokens from which on an answer loses all of it."""
    margin: int = Field(ge=1)
    """Tokens before the limit from which on it loses something."""

    @model_validator(mode="after")
    def _begins_within_the_answer(self) -> LengthPenalty:
        if self.margin > self.limit:
            raise ValueError(f"margin: {self.margin}; allowed are 1 to {self.limit}, the limit")
        return self

    def of(self, tokens: int) -> float:
        """What an answer of so many tokens loses, from 0 to 1."""
        return min(max(tokens - (self.limit - self.margin), 0) / self.margin, 1.0)


class ObjectiveConfig(Settings):
    """A GRPO-family policy-gradient objective (arXiv 2402.03300).

    An optimizer batch has the loss

        sum over sequences i, tokens t of  weight_i c_i (surrogate_it + kl_coefficient KL_it
                                                         - entropy_coefficient H_it)

    where clip range, coefficients and weight are those of the sequence's role. The factor c_i is given by
    `loss_normalization` over all trained sequences of the batch, whatever their roles. So a role's share of
    the loss is proportional to its tokens (or sequences) in the batch, times its weight.
    """

    advantage_normalization: Annotated[str, function_of("advantages")] = "std"
    """How the rewards of a group become advantages. `std`: minus their mean, divided by their standard
    deviation (GRPO, arXiv 2402.03300). `mean`: only minus their mean (Dr. GRPO, arXiv 2503.20783).
    `rloo`: minus the mean of the others (RLOO, arXiv 2402.14740). Or a function of an installed
    package; `erl-pipeline plugins` lists them."""
    credit: Literal["episode", "turn"] = Field(
        default="episode", exclude_if=lambda credit: credit == "episode"
    )
    """What the tokens of an attempt are given an advantage for. `episode`: its reward. `turn`: each turn's
    tokens for the rewards from this turn on (`turn_rewards`, undiscounted), compared with those of the same
    turn in the other attempts of the group (turn-level advantages of arXiv 2505.11821, with returns in place
    of single rewards). An attempt without rewards by turn, such as an agent's, gets its reward as that of a
    single turn."""
    advantages_per: Literal["group", "subgroup"] = "subgroup"
    """Which rewards are compared. `subgroup`: those of rows with the same group and subgroup, if a method
    splits its groups, as ERL does by `memory.withhold` (Complementary RL, arXiv 2603.17621). So a row
    is compared only with others that also saw a memory, or also saw none. A row without a subgroup is
    compared with the other rows of its group that have none. `group`: those of the whole group."""
    surrogate: Annotated[str, function_of("surrogates")] = "ppo"
    """The loss of each token: `ppo`, `cispo` or a function of an installed package (`erl-pipeline plugins`
    lists them). `ppo` gives no gradient to a token whose ratio is outside the clip range (arXiv 1707.06347,
    eq. 7). With `cispo` the clipped ratio, without gradient, weights the token's log-probability, so that
    every token gives a gradient (MiniMax-M1, arXiv 2506.13585, eq. 4); `dual_clip` then has no meaning."""
    ratio: Literal["token", "sequence"] = Field(default="token", exclude_if=lambda ratio: ratio == "token")
    """The ratio of new to old probability that the surrogate clips. `token`: that of each token (PPO).
    `sequence`: all tokens of a sequence have the geometric mean over its trained tokens, and each still has
    its own gradient and advantage (GSPO-token, arXiv 2507.18071, eq. 14; with `loss_normalization:
    sequence_mean` that is GSPO, eq. 5). It changes much less than the ratio of a token, so `clip_low` and
    `clip_high` must be set with it; the paper takes 0.0003 and 0.0004. Each token sequence of an agent's
    attempt has a ratio of its own. Under `decoupled` the ratio is that to the trainer's own log-probabilities
    before the first step, and the importance weights stay as `correction` says. It takes one more forward
    pass in each step, except in the first under `decoupled`, where all ratios are 1."""
    clip_low: float = Field(default=0.2, gt=0.0, lt=1.0)
    """The lower end of the clip range is `1 - clip_low`; it limits the ratio if the advantage is negative
    (PPO, arXiv 1707.06347, eq. 7)."""
    clip_high: float = Field(default=0.2, gt=0.0)
    """The upper end of the clip range is `1 + clip_high`; it limits the ratio if the advantage is positive. A
    value above `clip_low` is DAPO's clip-higher (arXiv 2503.14476)."""
    dual_clip: float | None = Field(default=None, gt=1.0)
    """Bounds a token's loss at `dual_clip` times |A| if its advantage A is negative (arXiv 1912.09729);
    `null`: no bound."""
    kl_coefficient: float = Field(default=0.0, ge=0.0)
    """Weight of the KL divergence to the reference policy; 0 loads no reference. Tokens that no policy
    sampled (roles `distilled` and `observed`) have no such term, and none of `entropy_coefficient`, unless
    `roles` sets one for their role: their loss is that of supervision alone."""
    kl_in: Literal["loss", "reward"] = Field(default="loss", exclude_if=lambda kl_in: kl_in == "loss")
    """Where that divergence counts. `loss`: a term beside the surrogate (GRPO). `reward`: each sampled token
    loses `kl_coefficient` times its log-ratio of sampler to reference (`k1`), and its advantage is that of
    its group plus what it and the tokens after it in its token sequence get so, as in RLHF by PPO (arXiv
    2203.02155, eq. 2) and as OpenRLHF does it for RLOO and GRPO (`compute_reward`, `get_cumulative_returns`).
    verl (`use_kl_in_reward`) and TRL's RLOO subtract the sum from the reward before rewards are compared;
    divided by the standard deviation of a group of equal rewards, it would count as much as a success.
    Replayed tokens lose nothing."""
    kl_estimator: Literal["k2", "k3"] = "k3"
    """Estimator of that divergence (Schulman 2020, "Approximating KL divergence"). `k1` is not allowed: as a
    loss, its gradient is zero in expectation."""
    entropy_coefficient: float = Field(default=0.0, ge=0.0)
    """Weight of the entropy bonus (PPO, arXiv 1707.06347, eq. 9)."""
    observation_coefficient: float = Field(default=0.0, ge=0.0, exclude_if=lambda weight: weight == 0.0)
    """Weight of an auxiliary loss: the cross-entropy of what the environment said between the turns of first
    and later attempts, so that the policy learns to predict it (implicit world modelling of arXiv 2510.08558,
    here beside reinforcement). These tokens are in the same mean as all others. 0: off, and then only what
    the policy said is trained."""
    loss_normalization: Literal["token_mean", "sequence_mean", "sequence_sum"] = "token_mean"
    """How token losses of an optimizer batch become one number. `token_mean`: mean over all tokens (DAPO).
    `sequence_mean`: mean over sequences of the mean over tokens (GRPO). `sequence_sum`: mean over
    sequences of the sum over tokens, which is Dr. GRPO up to its constant, `loss_length`."""
    loss_length: int | None = Field(default=None, ge=1, exclude_if=lambda length: length is None)
    """With `sequence_sum`: the constant by which the sum over tokens is divided, such as the most tokens of
    an answer (Dr. GRPO, arXiv 2503.20783). `null`: 1."""
    truncated: Literal["train", "leave_out"] = Field(
        default="train", exclude_if=lambda truncated: truncated == "train"
    )
    """What an update does with trajectories that a limit cut off. `leave_out`: their rewards count in their
    groups, and their tokens are not trained (overlong filtering of DAPO, arXiv 2503.14476, section 3.4)."""
    length_penalty: LengthPenalty | None = Field(default=None, exclude_if=lambda penalty: penalty is None)
    """What long answers lose of their reward before rewards are compared; the stored rewards stay. `null`:
    nothing."""
    normalizer: Literal["live_rows", "all_rows"] = "live_rows"
    """Which rows count in the mean of the policy loss. `live_rows`: those with an advantage that is not 0, so
    that steps stay as large when fewer groups give a signal. `all_rows`: also those with advantage 0, as in
    GRPO (arXiv 2402.03300, eq. 3), so that steps shrink with the signal. The loss of each minibatch is then
    multiplied by the share of rows with an advantage in the whole update."""
    subgroup_losses: Literal["pooled", "averaged"] = Field(
        default="pooled", exclude_if=lambda losses: losses == "pooled"
    )
    """How the losses of a role's subgroups become one, if a method splits its groups. `pooled`: as
    `loss_normalization` says, over the rows of all subgroups, so that one without an advantage leaves its
    weight to the other. `averaged`: the mean of the subgroups' losses, each normalised by itself, where one
    without an advantage counts with a loss of 0 (Complementary RL, arXiv 2603.17621, eq. 5). Weights are
    those of the whole update; its minibatches share them."""
    correction: CorrectionConfig = BypassCorrection()
    """How the difference between the policy that sampled and the policy that is trained is corrected."""
    roles: dict[str, RoleObjective] = Field(default_factory=dict)
    """Values for trajectories of one role, such as `reflection: {entropy_coefficient: 0.01}`. The roles are
    those of the method."""

    def terms(self, role: str) -> RoleTerms:
        """The numbers of the objective for trajectories of this role."""
        own = self.roles.get(role, RoleObjective()).model_dump(exclude_none=True)
        # Both terms are estimated on tokens that the policy sampled, and would work against supervision.
        none = {"kl_coefficient": 0.0, "entropy_coefficient": 0.0} if role in UNSAMPLED else {}
        return RoleTerms(**(self.model_dump(include=set(RoleObjective.model_fields)) | none | own))

    def penalizes(self, role: str) -> bool:
        """Whether tokens of this role lose reward by their divergence from the reference."""
        return self.kl_in == "reward" and self.terms(role).kl_coefficient > 0

    @model_validator(mode="after")
    def _divides_sums(self) -> ObjectiveConfig:
        if self.loss_length is not None and self.loss_normalization != "sequence_sum":
            raise ValueError(
                f"loss_length: {self.loss_length}; allowed with loss_normalization: "
                f"{self.loss_normalization} is null, since only sums are divided by a constant"
            )
        return self

    @model_validator(mode="after")
    def _clips_sequences_closely(self) -> ObjectiveConfig:
        if self.ratio == "sequence" and not {"clip_low", "clip_high"} <= self.model_fields_set:
            raise ValueError(
                "ratio: sequence; set clip_low and clip_high too: ratios of whole sequences stay close to 1, "
                "and the clip range of tokens would clip none (GSPO has 0.0003 and 0.0004)"
            )
        return self

    @property
    def needs_reference(self) -> bool:
        """Whether the KL term is on, for any role."""
        coefficients = [self.kl_coefficient, *(self.terms(role).kl_coefficient for role in self.roles)]
        return any(coefficient > 0 for coefficient in coefficients)


def require_known_roles(objective: ObjectiveConfig, roles: Collection[str]) -> None:
    """Raise `ConfigError` if `objective.roles` names a role that is not one of the method's `roles`."""
    for role in objective.roles:
        if role not in roles:
            raise ConfigError(
                f"objective.roles: {role} is no role of this method; allowed: {', '.join(sorted(roles))}"
            )


class ReplayLoss(Settings):
    """How an update uses trajectories of an older policy together with fresh ones."""

    role: str
    """The role of the replayed trajectories."""
    corrected: bool
    """Whether the ratio w is computed against the stored log-probabilities. If not, w is 1."""
    shaping_beta: float | None
    """Replayed tokens get w / (w + beta) in place of w; None keeps w."""
    weight_cap: float | None
    """Largest w; None: no limit."""
    clip: bool
    """Whether fresh tokens keep their clip range in an update with replayed tokens."""
