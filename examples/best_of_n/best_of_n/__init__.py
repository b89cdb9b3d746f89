"""Best-of-n distillation (RAFT, arXiv 2304.06767): n attempts at each task, and supervised training on the
best of those that succeeded. There is no reinforcement-learning update."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from best_of_n.columns import columns
from best_of_n.plan import plan_learning, plan_rollouts
from best_of_n.settings import ATTEMPT, BestOfNConfig, BestOfNEpisodeSettings
from erl_pipeline.methods.interface import Method

if TYPE_CHECKING:
    from erl_pipeline.config.rollouts import SamplingConfig
    from erl_pipeline.environments.prompt_format import PromptFormat
    from erl_pipeline.episodes.context import EpisodeProtocol, RoleLimits


def _open_episode(
    settings: BestOfNEpisodeSettings, prompts: PromptFormat | None, *, first_only: bool, retrieval: bool
) -> EpisodeProtocol:
    from best_of_n.episode import run_episode
    from erl_pipeline.episodes.attempt import PlainPrompts

    return partial(run_episode, prompts=prompts or PlainPrompts())


def _role_limits(settings: BestOfNEpisodeSettings, sampling: SamplingConfig) -> Mapping[str, RoleLimits]:
    from erl_pipeline.episodes.context import RoleLimits

    return {ATTEMPT: RoleLimits(sampling.temperature, sampling.max_new_tokens)}


METHOD = Method(
    settings=BestOfNConfig,
    roles=lambda _settings: (ATTEMPT,),
    plan_rollouts=plan_rollouts,
    plan_learning=plan_learning,
    episode_settings=lambda _settings: BestOfNEpisodeSettings(),
    open_episode=_open_episode,
    role_limits=_role_limits,
    columns=columns,
)
