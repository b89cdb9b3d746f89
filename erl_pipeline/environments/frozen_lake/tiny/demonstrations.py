"""Weak scripted demonstrations of attempts, attempts with notes, and reflections, over a family of worlds.

Every demonstration draws its own permutation of the action words, so that the policy learns to read
notes and outcomes but cannot know any one world. Notes may be wrong, so that it also learns to trust what
it sees more than what it is told.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.frozen_lake.board import Board
from erl_pipeline.environments.frozen_lake.compact import CompactRendering
from erl_pipeline.environments.frozen_lake.game import FrozenLake
from erl_pipeline.environments.frozen_lake.realms import realm_words
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.steps import Step
from erl_pipeline.environments.frozen_lake.tiny.player import ScriptedPlayer
from erl_pipeline.environments.frozen_lake.tiny.retries import demonstrate_retry, play_out
from erl_pipeline.environments.frozen_lake.world import Symbols, World
from erl_pipeline.environments.hidden_words.directions import DIRECTIONS, Direction
from erl_pipeline.environments.hidden_words.hearsay import corrected, hearsay, slots_text
from erl_pipeline.environments.hidden_words.prompts import CompactPrompts
from erl_pipeline.environments.messages import Message
from erl_pipeline.environments.prompt_format import AttemptReport
from erl_pipeline.environments.tiny_parts import Demonstration, Question

_BLANK_MEMORY = 0.5  # share of reflections that are demonstrated without a memory


@dataclass(frozen=True)
class DemonstratedEpisode:
    """An attempt and, where it failed, reflections on it, each with a memory of its own, and perhaps a retry.

    `seen` are the action words whose direction the attempt has shown. `retry` is an attempt that is told how
    this one failed; None where there is none.
    """

    attempt: Demonstration
    reflections: Sequence[Demonstration]
    seen: Mapping[Direction, str]
    retry: Demonstration | None = None

    @property
    def conversations(self) -> list[Demonstration]:
        """All conversations that are trained on."""
        return [self.attempt, *self.reflections, *([] if self.retry is None else [self.retry])]

    @property
    def questions(self) -> list[Question]:
        """Whether a reflection says what its attempt has shown, whatever memory says."""
        places = tuple(place for place, direction in enumerate(DIRECTIONS) if direction in self.seen)
        return [Question(reflection, places) for reflection in self.reflections if places]


def demonstrate(
    stream: random.Random, environment: FrozenLakeConfig, cold_start: ColdStartConfig, boards: Sequence[Board]
) -> DemonstratedEpisode:
    """One attempt at a random board in a random world and, where it failed, reflections on it; perhaps also
    a retry, an attempt that is told how this one failed."""
    board = stream.choice(boards)
    world = random_world(stream, environment)
    prompts = CompactPrompts(environment.action_words)
    env = FrozenLake(
        board,
        world,
        environment.max_steps,
        environment.action_mode,
        CompactRendering(board, world, environment.max_steps, environment.frame),
    )
    notes = {} if stream.random() < cold_start.blank_notes else hearsay(stream, world, cold_start)
    player = ScriptedPlayer(stream, board, environment.action_words, notes, cold_start.random_intent)

    observation = env.reset()
    attempt = prompts.attempt("", observation, [slots_text(notes)])
    reward = play_out(env, player, environment, attempt)
    seen = seen_moves(env.steps)
    if reward > 0:
        return DemonstratedEpisode(attempt, (), seen)

    report = AttemptReport(observation, env.trace(), env.feedback(), reward)
    reflections: list[Demonstration] = []
    for _ in range(cold_start.reflections_per_failure):
        memory = {} if stream.random() < _BLANK_MEMORY else hearsay(stream, world, cold_start)
        asked = prompts.reflection("", report, [slots_text(memory)])
        reflections.append([*asked, _says(slots_text(corrected(memory, seen)))])
    if not cold_start.retries or stream.random() >= cold_start.retries:
        return DemonstratedEpisode(attempt, reflections, seen)
    note = reflections[0][-1]["content"]
    retry = demonstrate_retry(stream, environment, cold_start.random_intent, board, env, seen, note)
    return DemonstratedEpisode(attempt, reflections, seen, retry)


def seen_moves(steps: Sequence[Step]) -> dict[Direction, str]:
    """The action words whose direction an attempt has shown."""
    return {d: step.action.word for step in steps if step.action for d in DIRECTIONS if step.outcome == d}


def random_world(stream: random.Random, environment: FrozenLakeConfig) -> World:
    """A world of random words. Where there are realms it has the name of any one, which says nothing yet."""
    symbols = list(environment.symbols)
    if environment.permute_symbols:
        stream.shuffle(symbols)
    directions = stream.sample(DIRECTIONS, 4)
    realms = realm_words(environment)
    return World(
        dict(zip(environment.action_words, directions, strict=True)),
        Symbols(*symbols),
        stream.choice(realms) if realms else "",
    )


def _says(text: str) -> Message:
    return {"role": "assistant", "content": text}
