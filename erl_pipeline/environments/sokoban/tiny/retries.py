"""Demonstrations of attempts whose prompt shows how the previous attempt failed."""

from __future__ import annotations

import random
from collections.abc import Mapping

from erl_pipeline.environments.hidden_words.directions import DIRECTIONS, Direction
from erl_pipeline.environments.hidden_words.prompts import UNKNOWN, CompactPrompts
from erl_pipeline.environments.messages import Message, user_message
from erl_pipeline.environments.prompt_format import AttemptReport
from erl_pipeline.environments.sokoban.game import Sokoban
from erl_pipeline.environments.sokoban.settings import SokobanConfig
from erl_pipeline.environments.sokoban.tiny.player import ScriptedPlayer
from erl_pipeline.environments.tiny_parts import Demonstration

_BLANK_NOTES = 0.5  # share of retries that are demonstrated without a reflection


def demonstrate_retry(
    stream: random.Random,
    environment: SokobanConfig,
    random_intent: float,
    game: Sokoban,
    seen: Mapping[Direction, str],
    reflection: str,
) -> Demonstration:
    """Another attempt after the failed one that `game` has just played. Its prompt shows the failed attempt
    and, in some demonstrations, `reflection` too. The player knows what the prompt says, and trusts the words
    that the failed attempt showed (`seen`) more than the reflection."""
    notes = [] if stream.random() < _BLANK_NOTES else [reflection]
    known = {**_slots(notes), **seen}
    trace, feedback = game.trace(), game.feedback()
    report = AttemptReport(game.reset(), trace, feedback, 0.0)
    shown = CompactPrompts(environment.action_words).retry("", report, notes)
    player = ScriptedPlayer(stream, game.board, environment.action_words, known, random_intent)
    play_out(game, player, environment, shown)
    return shown


def play_out(
    game: Sokoban, player: ScriptedPlayer, environment: SokobanConfig, attempt: list[Message]
) -> float:
    """Play an attempt that was begun to its end and add its turns to the conversation; returns its reward."""
    while True:
        text = player.move() if environment.action_mode == "step" else player.plan(environment.max_steps)
        attempt.append({"role": "assistant", "content": text})
        result = game.step(text)
        if result.done:
            return result.reward
        player.learn(game.steps[-1])
        attempt.append(user_message(result.observation))


def _slots(notes: list[str]) -> Mapping[Direction, str]:
    """The words that these reflections know."""
    return {
        direction: word
        for text in notes
        for direction, word in zip(DIRECTIONS, text.split(), strict=True)
        if word != UNKNOWN
    }
