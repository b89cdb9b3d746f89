"""One episode: one attempt."""

from __future__ import annotations

from best_of_n.settings import ATTEMPT
from erl_pipeline.environments.prompt_format import AttemptPrompts
from erl_pipeline.episodes.attempt import play_attempt
from erl_pipeline.episodes.context import EpisodeContext, TurnKey
from storage.tables.trajectories import Trajectory


async def run_episode(context: EpisodeContext, prompts: AttemptPrompts) -> list[Trajectory]:
    """Attempt the task once."""
    place = TurnKey(ATTEMPT, phase=0)
    attempt = await play_attempt(
        context, place, lambda instructions, observation: prompts.attempt(instructions, observation, [])
    )
    return [attempt.row(context, place, parent=None)]
