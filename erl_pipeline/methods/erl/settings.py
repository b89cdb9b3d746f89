"""Settings of ERL, and the roles of its trajectories."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from erl_pipeline.config.base import PluginSettings, Settings, switch
from erl_pipeline.config.memory import MemoryConfig
from erl_pipeline.config.prompts import FeedbackConfig, PromptTemplates, RulesFeedback
from erl_pipeline.config.rollouts import LEAST_TEMPERATURE

FIRST_ATTEMPT = "first_attempt"
REFLECTION = "reflection"
SECOND_ATTEMPT = "second_attempt"
"""Also a third or later attempt; `revision_index` tells which."""


class RoleSampling(Settings):
    """How the turns of one role are sampled. `null` takes the value of `sampling`."""

    temperature: float | None = Field(default=None, ge=LEAST_TEMPERATURE, le=2.0)
    """As `sampling.temperature`."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of one turn."""


class SamplingByRole(Settings):
    """What differs from `sampling` for trajectories of a role."""

    first_attempt: RoleSampling = RoleSampling()
    """First attempts. A greedy evaluation is greedy in all roles."""
    reflection: RoleSampling = RoleSampling()
    """Reflections; one turn each."""
    second_attempt: RoleSampling = RoleSampling()
    """Second and later attempts."""


class ErlEpisodeSettings(PluginSettings):
    """What an episode of ERL depends on."""

    type: Literal["erl"] = "erl"
    reflection: bool = True
    """`off`: second attempts follow the failed attempt and its feedback, without a reflection (an
    ablation)."""
    max_revisions: int = Field(default=1, ge=1, le=8)
    """Most rounds of reflection and further attempt after a first attempt that failed."""
    show_failed_attempt: bool | None = None
    """The prompt of a second attempt shows how the failed one went and its feedback, beside the reflection.
    `null`: only with `reflection: off`, as in the paper; there `off` makes a plain second try. A tiny policy
    has to see such prompts in its cold start (`policy.cold_start.retries`)."""
    ill_formed: Literal["end", "base_prompt"] = "end"
    """What follows a reflection that cannot be read. `end`: nothing. `base_prompt`: a second attempt on the
    first attempt's prompt, whose reward is the reflection's too, as in the official code."""
    retry_from: Literal["named_turn"] | None = None
    """Where a second attempt begins. `null`: at the beginning. `named_turn`: at the turn of the failed
    attempt that the reflection names as `turn N`, counted from 1. The turns before it are played again as
    they were, and only what follows is trained (R3L, arXiv 2601.03715). Where no turn is named, or the
    environment answers otherwise than it did, it begins at the beginning."""
    feedback: FeedbackConfig = RulesFeedback()
    """Who says what went wrong in an attempt: `{type: rules}`, the environment, or `{type: judge}`, a
    language model."""
    sampling: SamplingByRole = SamplingByRole()
    """Temperatures and lengths by role."""
    prompts: PromptTemplates = PromptTemplates()
    """Prompts of the policy, for environments that have no prompts of their own."""

    @property
    def shows_failed_attempt(self) -> bool:
        """Whether the prompts of second attempts show how the failed one went."""
        return not self.reflection if self.show_failed_attempt is None else self.show_failed_attempt


class ErlConfig(ErlEpisodeSettings):
    """Experiential reinforcement learning (arXiv 2602.13949): attempt, feedback, reflection, second
    attempt."""

    memory: Annotated[MemoryConfig | None, BeforeValidator(switch)] = MemoryConfig()
    """`off`: reflections are neither stored nor retrieved."""

    @model_validator(mode="before")
    @classmethod
    def _no_memory_without_reflections(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("reflection") is False:
            return {"memory": False, **values}
        return values

    @model_validator(mode="after")
    def _possible_together(self) -> ErlConfig:
        if self.memory is not None and not self.reflection:
            raise ValueError("memory: it holds reflections; with reflection: off set memory: off too")
        return self


def episode_settings(settings: ErlConfig) -> ErlEpisodeSettings:
    """The settings of episodes; what is learned from them afterwards changes no episode."""
    values = settings.model_dump(include=set(ErlEpisodeSettings.model_fields))
    shown = {"show_failed_attempt": settings.shows_failed_attempt}
    return ErlEpisodeSettings.model_validate({**values, **shown})


def first_attempt_settings(settings: ErlEpisodeSettings) -> ErlEpisodeSettings:
    sampling = SamplingByRole(first_attempt=settings.sampling.first_attempt)
    return episode_settings(ErlConfig(sampling=sampling))
