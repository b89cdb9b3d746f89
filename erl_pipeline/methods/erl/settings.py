"""Settings of ERL, and the roles of its trajectories."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from erl_pipeline.config.base import PluginSettings, switch
from erl_pipeline.config.distillation import DistillationConfig
from erl_pipeline.config.memory import MemoryConfig
from erl_pipeline.methods.erl.prompts import PromptTemplates

FIRST_ATTEMPT = "first_attempt"
REFLECTION = "reflection"
SECOND_ATTEMPT = "second_attempt"
"""Also a third or later attempt; `revision_index` tells which."""


class ErlDistillationConfig(DistillationConfig):
    """Second attempts that went well become supervised examples on the first attempt's prompt."""

    chain: bool = False
    """Also train on what led there: the reflection and the second attempt, each on the prompt that it was
    sampled on, so that the policy goes on learning to write and to use them."""


class ErlConfig(PluginSettings):
    """Experiential reinforcement learning (arXiv 2602.13949): attempt, feedback, reflection, second
    attempt."""

    type: Literal["erl"] = "erl"
    reflection: bool = True
    """`off`: second attempts follow the feedback alone, without a reflection (an ablation)."""
    max_revisions: int = Field(default=1, ge=1, le=8)
    """Most rounds of reflection and further attempt after a first attempt that failed."""
    max_reflection_tokens: int = Field(default=8, ge=1)
    """Most tokens of one reflection."""
    memory: Annotated[MemoryConfig | None, BeforeValidator(switch)] = MemoryConfig()
    """`off`: reflections are neither stored nor retrieved."""
    distillation: Annotated[ErlDistillationConfig | None, BeforeValidator(switch)] = ErlDistillationConfig()
    """Second attempts that went well are trained on the first attempt's prompt (L_distill). `off`: no
    distillation dataset and no supervised stage."""
    prompts: PromptTemplates = PromptTemplates()
    """What the policy is told, for environments that have no prompts of their own."""

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


class ErlEpisodeSettings(PluginSettings):
    """What an episode of ERL follows from."""

    type: Literal["erl"] = "erl"
    reflection: bool
    max_revisions: int
    max_reflection_tokens: int
    prompts: PromptTemplates


def episode_settings(settings: ErlConfig) -> ErlEpisodeSettings:
    """The settings of episodes; what is learned from them afterwards changes no episode."""
    return ErlEpisodeSettings(
        reflection=settings.reflection,
        max_revisions=settings.max_revisions,
        max_reflection_tokens=settings.max_reflection_tokens,
        prompts=settings.prompts,
    )
