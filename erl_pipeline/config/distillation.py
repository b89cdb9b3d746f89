"""Settings of distillation: attempts that went well are trained as answers to the first attempt's prompt."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.config.plugins import plugins

DISTILLED = "distilled"
"""The role of supervised rows whose response is trained on the prompt that evaluation uses."""

Form = Literal["separate", "joint", "off"]


class DistillationConfig(Settings):
    """Attempts that went well become supervised examples, with the prompt that evaluation uses (L_distill of
    the ERL paper, arXiv 2602.13949). `on` and `off` stand for `form: separate` and `form: off`; a bare name
    is a form."""

    form: Form | None = None
    """`separate`: a supervised stage of its own after the update, with the settings `fine_tune`. `joint`: the
    examples are rows of the update, role `distilled`, in its optimizer steps and its mean over rows, as in
    the paper's code (RAFT, arXiv 2304.06767). Such a row has the advantage 1, times its weight. Nobody
    sampled it on this prompt, so its ratio is 1 and no clip range acts on it. `off`: none. `null`: what the
    method does by itself, `separate` with erl and `off` with all others."""
    weight: Literal["one", "reward"] = Field(default="one", exclude_if=lambda weight: weight == "one")
    """What multiplies the loss of a row. `one`: 1, the paper's rule. `reward`: its reward, at least 0, as in
    the paper's code, so that an attempt with .3 of the reward counts .3."""
    reward_above: float | None = None
    """Distil attempts with a reward above this; 0 is the rule of the ERL paper (r₂ > 0). `null`: distil
    attempts that succeeded, which is not the same if rewards are graded."""
    max_rows_per_task: int | None = Field(default=None, ge=1)
    """The most attempts at one task in an iteration's dataset; `null` keeps all."""
    window: int = Field(default=1, ge=1)
    """Train on the datasets of the last `window` iterations, the present one included. Set
    `fine_tune.batch_rows` and `fine_tune.steps` to match: they say how many rows are drawn, and how often."""
    chain: bool = False
    """Also train on what led there: the reflection and the second attempt, each on the prompt that it was
    sampled on, so that the policy keeps learning to write reflections and to use them. With `form: separate`
    and a method with reflections."""

    @model_validator(mode="before")
    @classmethod
    def _word(cls, values: Any) -> Any:
        """Accept `on`, `off` or a form in place of the group; `off` is false in YAML."""
        if isinstance(values, bool):
            return {"form": "separate" if values else "off"}
        if isinstance(values, str):
            return {"form": values}
        if isinstance(values, dict) and values.get("form") is False:
            return {**values, "form": "off"}
        return values


class DistilledRoles(Settings):
    """Which of a method's trajectories become supervised rows."""

    role: str
    """Role of the attempts that are distilled."""
    prompt_role: str
    """Role of the attempt, in the same episode, whose prompt the distilled responses are trained on."""
    via_role: str | None = None
    """Role of a text between the two attempts, such as a reflection, which a row names; None where there is
    none."""
    chain: bool = False
    """Whether the attempts that are distilled, and the texts that led to them, also become rows on the
    prompts that they were sampled on."""


def require_distillable(settings: DistillationConfig, form: Form, method: PluginSettings) -> None:
    """Raise ValueError, which names both settings, where the method has nothing to distil, or a form has no
    use for another setting. `form`: that of the settings, or what the method does by itself."""
    roles: DistilledRoles | None = plugins("methods")[method.type].value.distilled
    if form == "off" and settings.form is None and _asks_for_more(settings):
        raise ValueError(
            f"distillation: method {method.type} distils nothing by itself, so its other settings "
            "would have no effect; set distillation.form to separate or joint, or distillation: off"
        )
    if form != "off" and roles is None:
        raise ValueError(
            f"distillation: method {method.type} cannot be combined with it, since it has no attempts "
            "that could be trained as answers to a prompt without its help; allowed are erl and rlvr, or "
            "distillation: off"
        )
    if not settings.chain or form == "off":
        return
    if roles is not None and roles.via_role is None:
        raise ValueError(
            f"distillation.chain: on; method {method.type} has no text that led to an attempt, so "
            "that nothing could be added; leave it out"
        )
    if form == "joint":
        raise ValueError(
            "distillation.chain: on with distillation.form: joint would train reflections and second "
            "attempts twice in one update, which has them by their advantages already; leave chain out, or "
            "use form: separate"
        )


def _asks_for_more(settings: DistillationConfig) -> bool:
    return settings.model_copy(update={"form": None}) != DistillationConfig()
