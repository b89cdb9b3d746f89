"""Settings of self-distillation: the policy teaches itself, given what it knows only after the attempt."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from erl_pipeline.config.base import Settings
from erl_pipeline.config.prompts import check_template


class DistillationLoss(Settings):
    """A divergence between the policy and its teacher as a loss of its own, beside that of the objective:

        L = L_RL + coefficient * L_SD

    L_SD is the mean over the tokens that a teacher has scored, whatever their advantage, by
    `objective.loss_normalization`."""

    divergence: Literal["forward", "reverse", "jsd"] = "reverse"
    """Between the policy p and its teacher q. `forward`: KL(q || p). `reverse`: KL(p || q). `jsd`: beta
    KL(q || m) + (1 - beta) KL(p || m) with m = (1 - beta) p + beta q."""
    beta: float = Field(default=0.5, gt=0.0, lt=1.0)
    """With `jsd`: the share of q in m."""
    estimator: Literal["top_k", "sampled"] = "top_k"
    """`top_k`: the divergence over the `top_k` most probable tokens at each place. `sampled`: the estimate of
    the reverse divergence from the token that was sampled."""
    top_k: int = Field(default=20, ge=1)
    """How many tokens are compared at each place. Scores take 8 bytes for each of them. As many as the
    vocabulary has, or more: the whole distribution."""
    support: Literal["student", "teacher"] = "student"
    """Whose most probable tokens these are, both before the update: those behind the prompt of the attempt,
    which takes a further pass, or those behind the prompt with hindsight."""
    tail: bool = True
    """Compare also the probability of all other tokens together, so that it remains a divergence. Without it,
    only the terms of the `top_k` tokens are added up, and their sum may be negative."""
    ratio_cap: float | None = Field(default=2.0, gt=0.0)
    """Losses are multiplied by min(p / b, cap), without gradient, where b is the policy that sampled. `null`:
    by nothing."""
    token_clip: float | None = Field(default=None, gt=0.0)
    """Divergences of a token above it count as this many nats, and give no gradient (OPSD). `null`: all
    count."""
    skip_tokens: int = Field(default=0, ge=0)
    """The first tokens of each attempt that have no such loss (3 in SDFT)."""

    @model_validator(mode="after")
    def _can_be_estimated(self) -> DistillationLoss:
        if self.estimator == "sampled":
            if self.divergence != "reverse":
                raise ValueError(
                    f"divergence: {self.divergence}; allowed with estimator: sampled is reverse; use estimator: top_k"
                )
            if self.token_clip is not None:
                raise ValueError(
                    f"token_clip: {self.token_clip:g}; allowed with estimator: sampled is null, since the "
                    "value of its loss means nothing; use estimator: top_k"
                )
        elif self.divergence == "forward" and not self.tail:
            raise ValueError(
                "tail: false; allowed with divergence: forward is true, since the terms of some tokens alone "
                "become negative, and their minimum is not at the teacher"
            )
        return self


class DistillationObjective(DistillationLoss):
    """The same with its weight, as an update needs it."""

    coefficient: float


class SelfDistillationConfig(Settings):
    """The policy scores the tokens of its first attempts once more, behind a prompt that also holds what was
    found out later (hindsight, as in SDPO, arXiv 2601.20802). What it says there is combined with the
    objective. Scores are taken once, before the update."""

    hindsight: Literal["reflection", "sibling", "feedback"] = "reflection"
    """What the prompt also holds. `reflection`: the prompt is that of the second attempt in the same episode,
    token for token, so that it holds what the policy itself wrote; only methods with reflections have it.
    `sibling`: another attempt at the same task that succeeded. `feedback`: what the environment said about
    the attempt."""
    rows: Literal["all", "failed"] = "all"
    """Which first attempts are scored, of those that have such a text."""
    combination: Literal["advantage", "loss"] = "advantage"
    """How the scores change the update. `advantage`: the advantage of each token becomes `A + coefficient *
    clip(log q - log p, -gap_limit, gap_limit)`, with A the advantage of its group, q the policy behind the
    prompt with hindsight, and p the one that sampled. With A 0 and a ratio of 1 this is the sampled-token
    estimate of the reverse divergence. `loss`: a loss of its own."""
    coefficient: float = Field(default=0.1, gt=0.0)
    """With `advantage`, the weight of the gap beside the group's advantage; with `loss`, that of the
    divergence beside the objective's loss."""
    gap_limit: float = Field(default=2.0, gt=0.0)
    """With `advantage`: the largest gap, in nats, that counts, on both sides."""
    loss: DistillationLoss = DistillationLoss()
    """With `combination: loss`: how the divergence is computed."""
    template: str = "{{ task }}\n\nThis was found out about the task afterwards:\n{{ text }}"
    """With `sibling` and `feedback`: what takes the place of the last message before the policy first spoke.
    Variables: `task`, that message, and `text`."""

    @property
    def objective(self) -> DistillationObjective | None:
        """The loss beside that of the objective; None without one."""
        if self.combination != "loss":
            return None
        return DistillationObjective(**self.loss.model_dump(), coefficient=self.coefficient)

    @field_validator("template")
    @classmethod
    def _can_be_rendered(cls, template: str) -> str:
        return check_template("template", template, {"task": "A door.", "text": "It was locked."})


class SelfDistilledRoles(Settings):
    """Roles of the trajectories that a method teaches itself from."""

    attempt: str
    """That of first attempts, whose tokens are scored."""
    retry: str | None = None
    """That of attempts after a reflection, whose prompts hold it; None for a method without reflections."""
