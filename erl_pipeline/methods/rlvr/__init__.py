"""RLVR, the baseline: first attempts, trained by reinforcement from verifiable rewards (GRPO)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from erl_pipeline.methods.interface import Method
from erl_pipeline.methods.rlvr.columns import columns
from erl_pipeline.methods.rlvr.plan import plan_learning, plan_rollouts
from erl_pipeline.methods.rlvr.settings import FIRST_ATTEMPT, RlvrConfig, RlvrEpisodeSettings

if TYPE_CHECKING:
    from erl_pipeline.config.generation import SamplingConfig
    from erl_pipeline.environments.prompt_format import PromptFormat
    from erl_pipeline.episodes.context import EpisodeProtocol
    from erl_pipeline.episodes.limits import RoleLimits


def _open_episode(
    settings: RlvrEpisodeSettings, prompts: PromptFormat | None, *, first_only: bool, retrieval: bool
) -> EpisodeProtocol:
    from erl_pipeline.episodes.plain_prompts import PlainPrompts
    from erl_pipeline.methods.rlvr.episode import run_episode

    return partial(run_episode, prompts=prompts or PlainPrompts())


def _role_limits(settings: RlvrEpisodeSettings, sampling: SamplingConfig) -> Mapping[str, RoleLimits]:
    from erl_pipeline.episodes.limits import RoleLimits

    return {FIRST_ATTEMPT: RoleLimits(sampling.temperature, sampling.max_new_tokens)}


METHOD = Method(
    settings=RlvrConfig,
    roles=lambda _settings: (FIRST_ATTEMPT,),
    plan_rollouts=plan_rollouts,
    plan_learning=plan_learning,
    episode_settings=lambda _settings: RlvrEpisodeSettings(),
    open_episode=_open_episode,
    role_limits=_role_limits,
    columns=columns,
)
