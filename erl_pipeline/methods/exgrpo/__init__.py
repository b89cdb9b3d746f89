"""ExGRPO (arXiv 2510.02245): first attempts are trained together with replayed successes of earlier
iterations. It prefers tasks that are neither easy nor hard, and of these the successes that the policy is
surest of."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from erl_pipeline.methods.exgrpo.checks import require_possible
from erl_pipeline.methods.exgrpo.columns import columns
from erl_pipeline.methods.exgrpo.plan import plan_learning, plan_rollouts
from erl_pipeline.methods.exgrpo.settings import (
    FIRST_ATTEMPT,
    REPLAYED,
    ExgrpoConfig,
    ExgrpoEpisodeSettings,
)
from erl_pipeline.methods.interface import Method

if TYPE_CHECKING:
    from erl_pipeline.config.generation import SamplingConfig
    from erl_pipeline.environments.prompt_format import PromptFormat
    from erl_pipeline.episodes.context import EpisodeProtocol
    from erl_pipeline.episodes.limits import RoleLimits


def _open_episode(
    settings: ExgrpoEpisodeSettings, prompts: PromptFormat | None, *, first_only: bool, retrieval: bool
) -> EpisodeProtocol:
    from erl_pipeline.episodes.plain_prompts import PlainPrompts
    from erl_pipeline.methods.exgrpo.episode import run_episode

    return partial(run_episode, prompts=prompts or PlainPrompts())


def _role_limits(settings: ExgrpoEpisodeSettings, sampling: SamplingConfig) -> Mapping[str, RoleLimits]:
    from erl_pipeline.episodes.limits import RoleLimits

    return {FIRST_ATTEMPT: RoleLimits(sampling.temperature, sampling.max_new_tokens)}


def _roles(settings: ExgrpoConfig) -> tuple[str, ...]:
    return (FIRST_ATTEMPT,) if settings.replay is None else (FIRST_ATTEMPT, REPLAYED)


METHOD = Method(
    settings=ExgrpoConfig,
    roles=_roles,
    plan_rollouts=plan_rollouts,
    plan_learning=plan_learning,
    episode_settings=lambda _settings: ExgrpoEpisodeSettings(),
    open_episode=_open_episode,
    role_limits=_role_limits,
    columns=columns,
    require_possible=require_possible,
)
