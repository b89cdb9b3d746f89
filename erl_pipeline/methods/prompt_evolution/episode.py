"""One episode of prompt evolution: an attempt with the instruction and, where it failed, a proposal for a new
one."""

from __future__ import annotations

from erl_pipeline.environments.prompt_format import PromptFormat
from erl_pipeline.episodes.attempt import Attempt, play_attempt
from erl_pipeline.episodes.context import EpisodeContext, Outcome, TurnKey, trajectory
from erl_pipeline.episodes.dialogue import Dialogue
from erl_pipeline.methods.prompt_evolution.settings import FIRST_ATTEMPT, PROPOSAL
from storage.tables.trajectories import Trajectory


async def run_episode(context: EpisodeContext, prompts: PromptFormat, reflections: int) -> list[Trajectory]:
    """Play one episode. The first `reflections` samples of a task are followed by a proposal if they fail."""
    told = [] if context.instruction is None else [context.instruction]
    place = TurnKey(FIRST_ATTEMPT, phase=0)
    attempt = await play_attempt(
        context, place, lambda instructions, observation: prompts.attempt(instructions, observation, told)
    )
    rows = [attempt.row(context, place, parent=None)]
    if attempt.can_be_reflected_on and context.identity.sample_index < reflections:
        rows += await _propose(context, prompts, attempt, told, rows[0].trajectory_id)
    return rows


async def _propose(
    context: EpisodeContext, prompts: PromptFormat, failed: Attempt, told: list[str], parent: str
) -> list[Trajectory]:
    """Ask for a new instruction; nothing where the prompt leaves no room in the context. Its reward is 0,
    since only trials tell what it is worth."""
    messages = prompts.reflection(failed.instructions, failed.report, told)
    dialogue = Dialogue(context.chat, messages, context.limits.end_token_ids)
    if context.room(dialogue) < 1:
        return []
    place = TurnKey(PROPOSAL, phase=1, revision=1)
    generation = await context.sample(dialogue, place, turn=0)
    text = prompts.read_reflection(dialogue.add_turn(generation).text)
    outcome = Outcome(
        parent=parent,
        reward=0.0,
        success=False,
        finish_reason="ill_formed" if text is None else generation.finish_reason,
        truncated=dialogue.truncated,
        feedback=failed.report.feedback,
        text=text,
    )
    return [trajectory(context, place, dialogue, outcome)]
