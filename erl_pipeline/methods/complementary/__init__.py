"""Complementary RL (arXiv 2603.17621): a policy that learns with experience in its prompts, and an extractor,
trained beside it, that writes this experience after each episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

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
    from erl_pipeline.methods.complementary.prompts import ExperiencePrompts

    rules = Rules(prompts or ExperiencePrompts(settings.prompts), retrieval, settings.top_k, settings.dropout)
    return partial(run_episode, rules=rules)


def _role_limits(
    settings: complementary.ComplementaryEpisodeSettings, sampling: SamplingConfig
) -> Mapping[str, RoleLimits]:
    from erl_pipeline.episodes.context import RoleLimits

    return {complementary.FIRST_ATTEMPT: RoleLimits(sampling.temperature, sampling.max_new_tokens)}


def _pretrained_models(settings: complementary.ComplementaryConfig) -> Sequence[str]:
    crl = settings.crl
    return () if crl is None or crl.extractor.model is None else (crl.extractor.model,)


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
    plan_beginning=plan.plan_beginning,
    require_possible=plan.require_possible,
    pretrained_models=_pretrained_models,
    plan_evaluation=plan.plan_evaluation,
)
