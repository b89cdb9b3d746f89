"""Complementary RL (arXiv 2603.17621): a policy that learns with experience in its prompts, and an extractor,
trained beside it, that writes this experience after each episode."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from erl_pipeline.config.experience import Lessons
from erl_pipeline.methods.complementary import plan
from erl_pipeline.methods.complementary import settings as complementary
from erl_pipeline.methods.interface import Method

if TYPE_CHECKING:
    from erl_pipeline.config.rollouts import SamplingConfig
    from erl_pipeline.environments.prompt_format import PromptFormat
    from erl_pipeline.episodes.context import EpisodeProtocol, RoleLimits


def _open_episode(
    settings: complementary.ComplementaryEpisodeSettings,
    prompts: PromptFormat | None,
    *,
    first_only: bool,
    retrieval: bool,
) -> EpisodeProtocol:
    from erl_pipeline.methods.complementary.episode import Rules, run_episode
    from erl_pipeline.stages.extractor.prompts import ExperiencePrompts

    rules = Rules(prompts or ExperiencePrompts(settings.prompts), retrieval, settings.top_k, settings.dropout)
    return partial(run_episode, rules=rules)


def _role_limits(
    settings: complementary.ComplementaryEpisodeSettings, sampling: SamplingConfig
) -> Mapping[str, RoleLimits]:
    from erl_pipeline.episodes.context import RoleLimits

    return {complementary.FIRST_ATTEMPT: RoleLimits(sampling.temperature, sampling.max_new_tokens)}


def _own_experience(settings: complementary.ComplementaryConfig) -> Lessons | None:
    return None if settings.crl is None else Lessons(settings.crl, settings.prompts, "method.experience")


def _roles(settings: complementary.ComplementaryConfig) -> tuple[str, ...]:
    """The roles that `objective` applies to; the extractor has its own objective."""
    weights = isinstance(settings.experience, complementary.WeightsExperienceConfig)
    return (complementary.FIRST_ATTEMPT, complementary.REPLAY) if weights else (complementary.FIRST_ATTEMPT,)


METHOD = Method(
    settings=complementary.ComplementaryConfig,
    roles=_roles,
    plan_rollouts=plan.plan_rollouts,
    plan_learning=plan.plan_learning,
    episode_settings=complementary.episode_settings,
    open_episode=_open_episode,
    role_limits=_role_limits,
    columns=plan.columns,
    retrieval=complementary.retrieval_settings,
    require_possible=plan.require_possible,
    packages=("erl_pipeline.stages.extractor.prompts",),
    own_experience=_own_experience,
    plan_evaluation=plan.plan_evaluation,
)
