"""Prompt evolution, after GEPA (arXiv 2507.19457): the policy reflects on failed attempts and proposes a new
instruction, which is kept if it raises the mean reward on other tasks. No weight changes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from erl_pipeline.methods.interface import Method, ReflectionSpec
from erl_pipeline.methods.prompt_evolution import plan
from erl_pipeline.methods.prompt_evolution.settings import (
    FIRST_ATTEMPT,
    PROPOSAL,
    PromptEvolutionConfig,
    PromptEvolutionEpisodeSettings,
    episode_settings,
    first_attempt_settings,
)

if TYPE_CHECKING:
    from erl_pipeline.config.rollouts import SamplingConfig
    from erl_pipeline.environments.prompt_format import PromptFormat
    from erl_pipeline.episodes.context import EpisodeProtocol, RoleLimits


def _open_episode(
    settings: PromptEvolutionEpisodeSettings,
    prompts: PromptFormat | None,
    *,
    first_only: bool,
    retrieval: bool,
) -> EpisodeProtocol:
    from erl_pipeline.environments.prompt_format import ChatPrompts
    from erl_pipeline.methods.prompt_evolution.episode import run_episode

    return partial(
        run_episode,
        prompts=prompts or ChatPrompts(settings.prompts),
        reflections=0 if first_only else settings.reflections,
    )


def _role_limits(
    settings: PromptEvolutionEpisodeSettings, sampling: SamplingConfig
) -> Mapping[str, RoleLimits]:
    from erl_pipeline.episodes.context import RoleLimits

    temperature, tokens = sampling.temperature, sampling.max_new_tokens
    return {
        FIRST_ATTEMPT: RoleLimits(temperature, tokens),
        PROPOSAL: RoleLimits(temperature, settings.instruction_tokens or tokens),
    }


def _reflecting(settings: PromptEvolutionEpisodeSettings) -> ReflectionSpec:
    from erl_pipeline.environments.prompt_format import ChatPrompts

    return ReflectionSpec(ChatPrompts(settings.prompts), FIRST_ATTEMPT, PROPOSAL, FIRST_ATTEMPT)


METHOD = Method(
    settings=PromptEvolutionConfig,
    roles=lambda _settings: (FIRST_ATTEMPT,),
    plan_rollouts=plan.plan_rollouts,
    plan_learning=plan.plan_learning,
    episode_settings=episode_settings,
    first_attempt_settings=first_attempt_settings,
    open_episode=_open_episode,
    role_limits=_role_limits,
    columns=plan.columns,
    packages=("erl_pipeline.environments.prompt_format",),
    reflecting=_reflecting,
    require_possible=plan.require_possible,
    trains=False,
)
