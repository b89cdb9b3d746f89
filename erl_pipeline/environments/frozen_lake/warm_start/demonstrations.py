"""Scripted attempts, attempts with notes, and reflections, each in a world of its own.

The demonstrator knows the world, and the policy cannot. So the policy learns to guess words uniformly without
notes, and to trust notes as far as they are right. It also learns the format and the planning.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from erl_pipeline.config.warm_start import DemonstrationsWarmStart
from erl_pipeline.environments.chat_prompts import ChatPrompts
from erl_pipeline.environments.frozen_lake.board import Board
from erl_pipeline.environments.frozen_lake.game import FrozenLake
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.short import ShortRendering, short_answer, short_reflection
from erl_pipeline.environments.frozen_lake.steps import Step
from erl_pipeline.environments.frozen_lake.tiny.demonstrations import random_world
from erl_pipeline.environments.frozen_lake.tiny.player import ScriptedPlayer
from erl_pipeline.environments.frozen_lake.world import World
from erl_pipeline.environments.hidden_words.directions import DIRECTIONS, Direction
from erl_pipeline.environments.hidden_words.hearsay import Slots, corrected, hearsay
from erl_pipeline.environments.messages import Message
from erl_pipeline.environments.prompt_format import AttemptReport
from storage.errors import ConfigError

_KINDS = ("first", "noted", "reflection")
_NO_ERRORS = 0.0
_TRIES = 100


@dataclass(frozen=True)
class Situation:
    """A board in a world, with the prompts of an environment's settings."""

    board: Board
    world: World
    settings: FrozenLakeConfig

    @property
    def prompts(self) -> ChatPrompts:
        assert self.settings.prompts is not None
        return ChatPrompts(self.settings.prompts)

    @property
    def words(self) -> dict[Direction, str]:
        """The action word that moves in each direction."""
        return {direction: self.world.word_for(direction) for direction in DIRECTIONS}

    def game(self) -> FrozenLake:
        """A fresh attempt."""
        rendering = ShortRendering(self.board, self.world, self.settings.instructions)
        return FrozenLake(self.board, self.world, self.settings.max_steps, "plan", rendering)

    def player(self, stream: random.Random, notes: Mapping[Direction, str]) -> ScriptedPlayer:
        """A player that walks a shortest way and believes what it is told."""
        return ScriptedPlayer(stream, self.board, self.settings.action_words, notes, _NO_ERRORS)

    def attempt(self, notes: Slots) -> list[Message]:
        """The prompt of an attempt that is told these words; without any, the prompt of a first attempt."""
        game = self.game()
        told = [short_reflection(notes)] if notes else []
        return self.prompts.attempt(game.instructions, game.reset(), told)


def random_situation(stream: random.Random, settings: FrozenLakeConfig, boards: Sequence[Board]) -> Situation:
    """A random board in a random world."""
    return Situation(stream.choice(boards), random_world(stream, settings), settings)


def demonstrate_attempt(stream: random.Random, situation: Situation, notes: Slots) -> list[Message]:
    """An attempt whose player knows the world, whatever the notes in its prompt say."""
    way = situation.player(stream, situation.words).way(situation.settings.max_steps)
    said = short_answer(situation.board, situation.world.symbols, way, situation.words)
    return [*situation.attempt(notes), _says(said)]


def demonstrate_reflection(
    stream: random.Random, situation: Situation, warm_start: DemonstrationsWarmStart
) -> list[Message] | None:
    """A reflection on an attempt that failed and moved; None where no guessed attempt did both. It says which
    words moved where, and what a memory adds to that; what was seen overrides the memory."""
    memory = hearsay(stream, situation.world, warm_start) if stream.random() < warm_start.memories else {}
    for _ in range(_TRIES):
        game = situation.game()
        observation = game.reset()
        guessing = situation.player(stream, {})
        way = guessing.way(situation.settings.max_steps)
        answer = short_answer(situation.board, situation.world.symbols, way, guessing.believed)
        reward = game.step(answer).reward
        seen = shown_words(game.steps, situation.world)
        if seen and not reward:
            break
    else:
        return None
    report = AttemptReport(observation, game.trace(), game.feedback(), reward)
    told = [short_reflection(memory)] if memory else []
    asked = situation.prompts.reflection(game.instructions, report, told)
    return [*asked, _says(short_reflection(corrected(memory, seen)))]


def shown_words(steps: Sequence[Step], world: World) -> dict[Direction, str]:
    """The action words whose direction an attempt has shown: those of all moves except against the edge."""
    moved = [step.action.word for step in steps if step.action is not None and step.outcome != "bump"]
    return {direction: word for direction in DIRECTIONS for word in moved if world.actions[word] == direction}


def demonstrate(
    stream: random.Random,
    settings: FrozenLakeConfig,
    warm_start: DemonstrationsWarmStart,
    boards: Sequence[Board],
) -> list[Message]:
    """One conversation. Its kind is drawn with the shares in `warm_start`.

    Raises ConfigError where no reflection can be demonstrated.
    """
    parts = warm_start.first_attempts, warm_start.noted_attempts, warm_start.reflections
    (kind,) = stream.choices(_KINDS, parts)
    for _ in range(_TRIES):
        situation = random_situation(stream, settings, boards)
        if kind == "reflection":
            if (reflection := demonstrate_reflection(stream, situation, warm_start)) is not None:
                return reflection
            continue
        notes = hearsay(stream, situation.world, warm_start) if kind == "noted" else {}
        return demonstrate_attempt(stream, situation, notes)
    raise ConfigError(
        "policy.warm_start.reflections: on these boards no attempt both fails and shows what a word does; "
        "set it to 0, or allow larger boards or longer ways"
    )


def _says(text: str) -> Message:
    return {"role": "assistant", "content": text}
