"""Episodes of one attempt, for methods that ask for nothing more.

This module's code decides what happens in these episodes: a method that uses it names it in
`Method.packages`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from erl_pipeline.config.rollouts import SamplingConfig
    from erl_pipeline.environments.prompt_format import AttemptPrompts, PromptFormat
    from erl_pipeline.episodes.context import EpisodeContext, EpisodeProtocol, RoleLimits
    from erl_pipeline.methods.interface import OpenEpisode
    from storage.tables.trajectories import Trajectory


async def run_single_attempt(context: EpisodeContext, role: str, prompts: AttemptPrompts) -> list[Trajectory]:
    """Attempt the task once."""
    from erl_pipeline.episodes.attempt import play_attempt
    from erl_pipeline.episodes.context import TurnKey

    place = TurnKey(role, phase=0)
    attempt = await play_attempt(
        context, place, lambda instructions, observation: prompts.attempt(instructions, observation, [])
    )
    return [attempt.row(context, place, parent=None)]


def open_single_attempt(role: str) -> OpenEpisode:
    """`Method.open_episode`, for attempts of this role."""

    def open_episode(
        settings: Any, prompts: PromptFormat | None, *, first_only: bool, retrieval: bool
    ) -> EpisodeProtocol:
        from erl_pipeline.episodes.attempt import PlainPrompts

        return partial(run_single_attempt, role=role, prompts=prompts or PlainPrompts())

    return open_episode


def single_attempt_limits(role: str) -> Callable[[Any, SamplingConfig], Mapping[str, RoleLimits]]:
    """`Method.role_limits`: attempts of this role are sampled as the configuration says."""

    def role_limits(settings: Any, sampling: SamplingConfig) -> Mapping[str, RoleLimits]:
        from erl_pipeline.episodes.context import RoleLimits

        return {role: RoleLimits(sampling.temperature, sampling.max_new_tokens)}

    return role_limits
