"""One episode of ExGRPO: a first attempt. What is replayed beside it comes from earlier episodes."""

from __future__ import annotations

from erl_pipeline.environments.prompt_format import AttemptPrompts
from erl_pipeline.episodes.attempt import play_attempt
from erl_pipeline.episodes.context import EpisodeContext, Place
from erl_pipeline.methods.exgrpo.settings import FIRST_ATTEMPT
from storage.tables.trajectories import Trajectory


async def run_episode(context: EpisodeContext, prompts: AttemptPrompts) -> list[Trajectory]:
    """Attempt the task once."""
    place = Place(FIRST_ATTEMPT, phase=0)
    attempt = await play_attempt(
        context, place, lambda instructions, observation: prompts.attempt(instructions, observation, [])
    )
    return [attempt.row(context, place, parent=None)]
