"""ERL (arXiv 2602.13949): attempt, feedback, reflection, second attempt; all three texts are trained by
reinforcement, and second attempts that succeeded are distilled onto the first attempt's prompt."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from erl_pipeline.methods.erl.columns import columns
from erl_pipeline.methods.erl.plan import plan_learning, plan_rollouts
from erl_pipeline.methods.erl.settings import (
    FIRST_ATTEMPT,
    REFLECTION,
    SECOND_ATTEMPT,
    ErlConfig,
    ErlEpisodeSettings,
    episode_settings,
)
from erl_pipeline.methods.interface import Method, Reflecting

if TYPE_CHECKING:
    from erl_pipeline.config.generation import SamplingConfig
    from erl_pipeline.config.memory import RetrievalSettings
    from erl_pipeline.environments.prompt_format import PromptFormat
    from erl_pipeline.episodes.context import EpisodeProtocol
    from erl_pipeline.episodes.limits import RoleLimits


def _open_episode(
    settings: ErlEpisodeSettings, prompts: PromptFormat | None, *, first_only: bool, retrieval: bool
) -> EpisodeProtocol:
    from erl_pipeline.methods.erl.episode import ErlRules, run_episode
    from erl_pipeline.methods.erl.prompts import ChatPrompts

    rules = ErlRules(
        prompts=prompts or ChatPrompts(settings.prompts),
        max_revisions=0 if first_only else settings.max_revisions,
        reflection=settings.reflection,
        retrieval=retrieval,
    )
    return partial(run_episode, rules=rules)


def _role_limits(settings: ErlEpisodeSettings, sampling: SamplingConfig) -> Mapping[str, RoleLimits]:
    from erl_pipeline.episodes.limits import RoleLimits

    attempt = RoleLimits(sampling.temperature, sampling.max_new_tokens)
    reflection = RoleLimits(sampling.temperature, settings.max_reflection_tokens)
    return {FIRST_ATTEMPT: attempt, REFLECTION: reflection, SECOND_ATTEMPT: attempt}


def _reflecting(settings: ErlEpisodeSettings) -> Reflecting:
    from erl_pipeline.methods.erl.prompts import ChatPrompts

    return Reflecting(ChatPrompts(settings.prompts), settings.max_reflection_tokens)


def _retrieval(settings: ErlConfig) -> RetrievalSettings | None:
    return None if settings.memory is None else settings.memory.retrieval


def _roles(settings: ErlConfig) -> tuple[str, ...]:
    return (
        (FIRST_ATTEMPT, REFLECTION, SECOND_ATTEMPT)
        if settings.reflection
        else (FIRST_ATTEMPT, SECOND_ATTEMPT)
    )


METHOD = Method(
    settings=ErlConfig,
    roles=_roles,
    plan_rollouts=plan_rollouts,
    plan_learning=plan_learning,
    episode_settings=episode_settings,
    open_episode=_open_episode,
    role_limits=_role_limits,
    retrieval=_retrieval,
    reflecting=_reflecting,
    columns=columns,
)
