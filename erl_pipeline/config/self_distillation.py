"""Settings of self-distillation: the policy teaches itself, given what it knows only after the attempt."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from erl_pipeline.config.base import Settings
from erl_pipeline.config.prompts import check_template


class SelfDistillationConfig(Settings):
    """The policy scores the tokens of its first attempts once more, behind a prompt that also holds what was
    found out later (hindsight, as in SDPO, arXiv 2601.20802). Each token's advantage becomes

        A_t = A + coefficient * clip(log q_t - log p_t, -gap_limit, gap_limit)

    with A the advantage of its group, q the policy behind the prompt with hindsight, and p the one that
    sampled. With a group advantage of 0 and a ratio of 1 the loss is the sampled-token estimate of the
    reverse divergence KL(p || q). Scores are taken once, before the update."""

    hindsight: Literal["reflection", "sibling", "feedback"] = "reflection"
    """What the prompt also holds. `reflection`: the prompt is that of the second attempt in the same episode,
    token for token, so that it holds what the policy itself wrote; only methods with reflections have it.
    `sibling`: another attempt at the same task that succeeded. `feedback`: what the environment said about
    the attempt."""
    rows: Literal["all", "failed"] = "all"
    """Which first attempts are scored, of those that have such a text."""
    coefficient: float = Field(default=0.1, gt=0.0)
    """Weight of the gap beside the group's advantage."""
    gap_limit: float = Field(default=2.0, gt=0.0)
    """Largest gap, in nats, that counts, on both sides."""
    template: str = "{{ task }}\n\nThis was found out about the task afterwards:\n{{ text }}"
    """With `sibling` and `feedback`: what takes the place of the last message before the policy first spoke.
    Variables: `task`, that message, and `text`."""

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
