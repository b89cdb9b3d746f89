"""Weak scripted demonstrations of attempts, attempts with notes, and reflections, over a family of worlds.

Every demonstration draws its own permutation of the action words, so that the policy learns to read
notes and outcomes but cannot know any one world.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from erl_pipeline.config.environment import FrozenLakeConfig
from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.base import AttemptReport
from erl_pipeline.environments.frozen_lake.board import DIRECTIONS, Board, Direction
from erl_pipeline.environments.frozen_lake.compact import CompactRendering
from erl_pipeline.environments.frozen_lake.environment import FrozenLake
from erl_pipeline.environments.frozen_lake.steps import Step
from erl_pipeline.environments.frozen_lake.tiny.player import ScriptedPlayer
from erl_pipeline.environments.frozen_lake.tiny.prompts import UNKNOWN, CompactPrompts
from erl_pipeline.environments.frozen_lake.world import Symbols, World
from erl_pipeline.episodes.prompts import Message
from erl_pipeline.policies.tiny.tokenizer import ASSISTANT, BOS, END, USER

_BLANK_MEMORY = 0.5  # share of reflections that are demonstrated without a memory


@dataclass
class Demonstration:
    """A conversation as the tokenizer's words; `trained` is True on the policy's own."""

    words: list[str] = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)

    def open(self, messages: Sequence[Message]) -> None:
        """Begin with a prompt."""
        self._add([BOS], trained=False)
        for message in messages:
            self.hear(message["content"])

    def hear(self, content: str) -> None:
        self._add([USER, *content.split()], trained=False)

    def say(self, text: str) -> None:
        self._add([ASSISTANT], trained=False)
        self._add([*text.split(), END], trained=True)

    def _add(self, words: list[str], trained: bool) -> None:
        self.words += words
        self.trained += [trained] * len(words)


def demonstrate(
    stream: random.Random, environment: FrozenLakeConfig, cold_start: ColdStartConfig, boards: Sequence[Board]
) -> list[Demonstration]:
    """One attempt at a random board in a random world and, where it failed, a reflection on it."""
    board = stream.choice(boards)
    world = _random_world(stream, environment)
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

    attempt = Demonstration()
    observation = env.reset()
    attempt.open(prompts.attempt("", observation, [slots_text(notes)]))
    while True:
        text = player.move() if environment.action_mode == "step" else player.plan(environment.max_steps)
        attempt.say(text)
        transition = env.step(text)
        if transition.done:
            break
        player.learn(env.steps[-1])
        attempt.hear(transition.observation)
    if transition.reward > 0:
        return [attempt]

    memory = {} if stream.random() < _BLANK_MEMORY else _some_truth(stream, world)
    report = AttemptReport(observation, env.trace(), env.feedback(), transition.reward)
    reflection = Demonstration()
    reflection.open(prompts.reflection("", report, [slots_text(memory)]))
    reflection.say(slots_text({**memory, **seen_moves(env.steps)}))
    return [attempt, reflection]


def slots_text(known: Mapping[Direction, str]) -> str:
    """The four slots of a reflection that knows these action words."""
    return " ".join(known.get(direction, UNKNOWN) for direction in DIRECTIONS)


def seen_moves(steps: Sequence[Step]) -> dict[Direction, str]:
    """The action words whose direction an attempt has shown."""
    return {d: step.action.word for step in steps if step.action for d in DIRECTIONS if step.outcome == d}


def _random_world(stream: random.Random, environment: FrozenLakeConfig) -> World:
    symbols = list(environment.symbols)
    if environment.permute_symbols:
        stream.shuffle(symbols)
    directions = stream.sample(DIRECTIONS, 4)
    return World(dict(zip(environment.action_words, directions, strict=True)), Symbols(*symbols))


def _some_truth(stream: random.Random, world: World) -> dict[Direction, str]:
    """One to four true slots."""
    told = stream.sample(DIRECTIONS, stream.randint(1, 4))
    return {direction: world.word_for(direction) for direction in told}
