"""Weak scripted demonstrations of attempts, attempts with notes, and reflections, over a family of worlds.

Every demonstration draws its own permutation of the action words, so that the policy learns to read
notes and outcomes but cannot know any one world.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.frozen_lake.board import DIRECTIONS, Board, Direction
from erl_pipeline.environments.frozen_lake.compact import CompactRendering
from erl_pipeline.environments.frozen_lake.game import FrozenLake
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.steps import Step
from erl_pipeline.environments.frozen_lake.tiny.player import ScriptedPlayer
from erl_pipeline.environments.frozen_lake.tiny.prompts import UNKNOWN, CompactPrompts
from erl_pipeline.environments.frozen_lake.world import Symbols, World
from erl_pipeline.environments.messages import Message, user_message
from erl_pipeline.environments.prompt_format import AttemptReport
from erl_pipeline.environments.tiny_parts import Demonstration

_BLANK_MEMORY = 0.5  # share of reflections that are demonstrated without a memory


def demonstrate(
    stream: random.Random, environment: FrozenLakeConfig, cold_start: ColdStartConfig, boards: Sequence[Board]
) -> list[Demonstration]:
    """One attempt at a random board in a random world and, where it failed, a reflection on it."""
    board = stream.choice(boards)
    world = random_world(stream, environment)
    prompts = CompactPrompts(environment.action_words)
    env = FrozenLake(
        board,
        world,
        environment.max_steps,
        environment.action_mode,
        CompactRendering(board, world, environment.max_steps),
    )
    notes = {} if stream.random() < cold_start.blank_notes else _some_truth(stream, world)
    player = ScriptedPlayer(stream, board, environment.action_words, notes, cold_start.random_intent)

    observation = env.reset()
    attempt = prompts.attempt("", observation, [slots_text(notes)])
    while True:
        text = player.move() if environment.action_mode == "step" else player.plan(environment.max_steps)
        attempt.append(_says(text))
        moved = env.step(text)
        if moved.done:
            break
        player.learn(env.steps[-1])
        attempt.append(user_message(moved.observation))
    if moved.reward > 0:
        return [attempt]

    memory = {} if stream.random() < _BLANK_MEMORY else _some_truth(stream, world)
    report = AttemptReport(observation, env.trace(), env.feedback(), moved.reward)
    asked = prompts.reflection("", report, [slots_text(memory)])
    return [attempt, [*asked, _says(slots_text({**memory, **seen_moves(env.steps)}))]]


def slots_text(known: Mapping[Direction, str]) -> str:
    """The four slots of a reflection that knows these action words."""
    return " ".join(known.get(direction, UNKNOWN) for direction in DIRECTIONS)


def seen_moves(steps: Sequence[Step]) -> dict[Direction, str]:
    """The action words whose direction an attempt has shown."""
    return {d: step.action.word for step in steps if step.action for d in DIRECTIONS if step.outcome == d}


def random_world(stream: random.Random, environment: FrozenLakeConfig) -> World:
    """A world as any task may have it."""
    symbols = list(environment.symbols)
    if environment.permute_symbols:
        stream.shuffle(symbols)
    directions = stream.sample(DIRECTIONS, 4)
    return World(dict(zip(environment.action_words, directions, strict=True)), Symbols(*symbols))


def _some_truth(stream: random.Random, world: World) -> dict[Direction, str]:
    """One to four true slots."""
    told = stream.sample(DIRECTIONS, stream.randint(1, 4))
    return {direction: world.word_for(direction) for direction in told}


def _says(text: str) -> Message:
    return {"role": "assistant", "content": text}
