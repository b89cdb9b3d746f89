"""Settings of self-distillation: the policy teaches itself, given what it knows only after the attempt."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from erl_pipeline.config.base import Settings, named
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
    grad_norms: bool = Field(default=False, exclude_if=lambda measured: not measured)
    """Measure the gradients of both losses apart, in the first step of each update, by two more passes over
    its batch. What is trained does not depend on it."""

    @model_validator(mode="after")
    def _can_be_estimated(self) -> DistillationLoss:
        if self.estimator == "sampled":
            if self.divergence != "reverse":
                raise ValueError(
                    f"divergence: {self.divergence}; allowed with estimator: sampled is reverse; use "
                    "estimator: top_k"
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


class ContrastConfig(Settings):
    """Hints that are right are held against hints that are wrong (RLCSD, arXiv 2606.11709):

        e = log q(token | a successful attempt) - log mean_k q(token | failed attempt k)
        r = clip(strength * tanh(e / temperature), -limit, limit)

    A token with |r| above `threshold` is selected, and its advantage becomes A + r, which may reach 0 but not
    change its sign. The loss is the mean over all other tokens, plus `selected_weight` times the mean over
    selected ones."""

    wrong_hints: int = Field(default=4, ge=1)
    """The most failed attempts at the task that are shown, each in a prompt of its own."""
    strength: float = Field(default=0.5, gt=0.0)
    """Largest change of an advantage."""
    temperature: float = Field(default=0.02, gt=0.0)
    """Nats at which a contrast has three quarters of its effect."""
    limit: float = Field(default=2.0, gt=0.0)
    """Limit of the change, on both sides; at `strength` or above it never acts."""
    threshold: float = Field(default=0.02, ge=0.0)
    """Smallest change that counts."""
    selected_weight: float = Field(default=1.0, gt=0.0)
    """Weight of the mean over selected tokens."""


class DemonstrationConfig(Settings):
    """What an attempt at the same task should look like (SDFT, arXiv 2601.19897; OPSD, arXiv 2601.18734)."""

    source: Literal["solution", "own_success"] = "solution"
    """`solution`: a text that is stored with the task. `own_success`: a first attempt at the task that
    succeeded in an earlier iteration, the latest one."""
    solution: str = "solution"
    """With `solution`: its key in the task's payload."""
    window: int = Field(default=1, ge=1)
    """With `own_success`: how many iterations before the present one are searched. A task comes again only
    after all tasks were drawn, where `rollouts.selection` is uniform."""


class LiveTeacher(Settings):
    """The policy as it is before the update. It stays the same during all steps of the update."""

    type: Literal["live"] = "live"


class AveragedTeacher(Settings):
    """A moving average of the policies with which iterations began, in fp32:
    `teacher <- (1 - rate) teacher + rate policy`. It begins as the first policy."""

    type: Literal["ema"] = "ema"
    rate: float = Field(default=0.01, gt=0.0, le=1.0)
    """Weight of the present policy."""
    interval: int = Field(default=1, ge=1)
    """Iterations from one average to the next."""


class FrozenTeacher(Settings):
    """The policy with which the run began."""

    type: Literal["frozen"] = "frozen"


class SelfDistillationConfig(Settings):
    """A teacher scores the tokens of first attempts once more, behind a prompt that also holds what was found
    out later (hindsight, as in SDPO, arXiv 2601.20802), or how it is done. What it says there is combined
    with the objective. Scores are taken once, before the update."""

    hindsight: Literal["reflection", "sibling", "feedback", "demonstration"] = "reflection"
    """What the prompt also holds. `reflection`: the prompt is that of the second attempt in the same episode,
    token for token, so that it holds what the policy itself wrote; only methods with reflections have it.
    `sibling`: another attempt at the same task that succeeded. `feedback`: what the environment said about
    the attempt. `demonstration`: a solution of the task."""
    demonstration: DemonstrationConfig = DemonstrationConfig()
    """With `hindsight: demonstration`: where it is taken from."""
    block: Literal["own", "shuffled", "empty"] = "own"
    """For comparisons. `shuffled`: the text belongs to another task. `empty`: the prompt is that of the
    attempt alone, so that only the teacher's weights matter."""
    rows: Literal["all", "failed"] = "all"
    """Which first attempts are scored, of those that have such a text."""
    teacher: Annotated[
        LiveTeacher | AveragedTeacher | FrozenTeacher, Field(discriminator="type"), BeforeValidator(named)
    ] = LiveTeacher()
    """Whose scores they are; a bare name means its defaults."""
    combination: Literal["advantage", "loss", "modulate"] = "advantage"
    """How the scores change the update. `advantage`: the advantage of each token becomes `A + coefficient *
    clip(log q - log p, -gap_limit, gap_limit)`, with A the advantage of its group, q the teacher behind the
    prompt with hindsight, and p the policy that sampled. With A 0 and a ratio of 1 this is the sampled-token
    estimate of the reverse divergence. `loss`: a loss of its own. `modulate`: right hints are held against
    wrong ones."""
    coefficient: float = Field(default=0.1, gt=0.0)
    """With `advantage`, the weight of the gap beside the group's advantage; with `loss`, that of the
    divergence beside the objective's loss."""
    coefficient_iterations: int | None = Field(
        default=None, ge=1, exclude_if=lambda iterations: iterations is None
    )
    """Over how many iterations N the coefficient falls, in equal steps: iteration i has `coefficient * (1 -
    (i - 1) / N)`. From iteration N + 1 on no teacher is asked. `null`: it stays."""
    gap_limit: float = Field(default=2.0, gt=0.0)
    """With `advantage`: the largest gap, in nats, that counts, on both sides."""
    loss: DistillationLoss = DistillationLoss()
    """With `combination: loss`: how the divergence is computed."""
    contrast: ContrastConfig = ContrastConfig()
    """With `combination: modulate`: how hints are compared."""
    template: str = "{{ task }}\n\nThis was found out about the task afterwards:\n{{ text }}"
    """What takes the place of the last message before the policy first spoke; with `reflection` nothing does.
    Variables: `task`, that message, and `text`."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Attempts that have more tokens than this, with the prompt that holds the text, are not scored. `null`:
    the context of the policy."""
    teacher_token_budget: int | None = Field(default=None, ge=1)
    """The most tokens that may be read for scores in an iteration, prompts and all passes included. A run
    that could read more, with attempts of `max_tokens`, does not start. `null`: no limit."""

    def at(self, iteration: int) -> SelfDistillationConfig | None:
        """What it is in an iteration; None where its coefficient has fallen to 0."""
        if self.coefficient_iterations is None:
            return self
        left = 1.0 - (iteration - 1) / self.coefficient_iterations
        changed = {"coefficient": self.coefficient * left, "coefficient_iterations": None}
        return self.model_copy(update=changed) if left > 0 else None

    @property
    def objective(self) -> DistillationObjective | None:
        """The loss beside that of the objective; None without one."""
        if self.combination != "loss":
            return None
        return DistillationObjective(**self.loss.model_dump(), coefficient=self.coefficient)

    @property
    def for_scores(self) -> SelfDistillationConfig:
        """The same without what changes no score, so that scores are made again only where they can
        change."""
        kept = {"estimator": self.loss.estimator, "top_k": self.loss.top_k, "support": self.loss.support}
        changed: dict[str, Any] = {"loss": DistillationLoss(**kept), "teacher_token_budget": None}
        if self.combination != "advantage":
            changed["coefficient"] = 1.0
        return self.model_copy(update=changed)

    @property
    def for_update(self) -> SelfDistillationConfig | None:
        """What an update needs besides scores; None where these only change advantages."""
        if self.combination == "advantage":
            return None
        kept = {"hindsight", "combination", "coefficient", "loss", "contrast"}
        defaults = {name: each.get_default() for name, each in type(self).model_fields.items()}
        return self.model_copy(update={name: value for name, value in defaults.items() if name not in kept})

    @property
    def compared_tokens(self) -> int:
        """How many tokens are compared at each place; 0 where only the sampled one is."""
        return self.loss.top_k if self.combination == "loss" and self.loss.estimator == "top_k" else 0

    @property
    def scores_student(self) -> bool:
        """Whether the policy also reads the prompt of the attempt itself."""
        return self.compared_tokens > 0 and self.loss.support == "student"

    @property
    def passes(self) -> int:
        """The most times that a token is read for the scores of an iteration."""
        if self.combination == "modulate":
            return 1 + self.contrast.wrong_hints
        return 1 + self.scores_student

    def require_within_budget(self, attempts: int) -> None:
        """Raise ValueError if the scores of an iteration with so many first attempts could take more tokens
        than the budget."""
        if self.teacher_token_budget is None:
            return
        if self.max_tokens is None:
            raise ValueError(
                "self_distillation.teacher_token_budget: how much attempts can take is not known; set "
                "self_distillation.max_tokens too"
            )
        most = attempts * self.passes * self.max_tokens
        if most > self.teacher_token_budget:
            raise ValueError(
                f"self_distillation.teacher_token_budget: {self.teacher_token_budget}; {attempts} attempts "
                f"of {self.max_tokens} tokens, each read {self.passes} times, are {most}; raise it, or lower "
                "max_tokens, rollouts.tasks_per_iteration or rollouts.group_size"
            )

    @model_validator(mode="after")
    def _possible_together(self) -> SelfDistillationConfig:
        if self.combination == "modulate" and self.hindsight != "sibling":
            raise ValueError(
                f"hindsight: {self.hindsight}; allowed with combination: modulate is sibling, whose attempts "
                "are the right and the wrong hints"
            )
        if self.combination == "modulate" and self.block != "own":
            raise ValueError(f"block: {self.block}; allowed with combination: modulate is own")
        if self.combination == "modulate" and self.coefficient_iterations is not None:
            raise ValueError(
                f"coefficient_iterations: {self.coefficient_iterations}; allowed with combination: modulate "
                "is null, since it has no coefficient"
            )
        if self.hindsight == "reflection" and self.block == "shuffled":
            raise ValueError(
                "block: shuffled; allowed with hindsight: reflection are own and empty, since the prompt is "
                "that of the second attempt, token for token"
            )
        return self

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
