"""What the cold start of a tiny policy needs: words, the length of its context, demonstrations.

The scripted player guesses any number that is still possible. It knows the order of the numbers, but not that
the middle is the best guess: that is left to be learned.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.messages import Message, user_message
from erl_pipeline.environments.prompt_format import AttemptReport
from erl_pipeline.environments.tiny_parts import Demonstration, TinyParts
from guess_number.compact import SLOTS, WORDS, CompactPrompts, CompactTexts, slots_text
from guess_number.game import Game, possible
from guess_number.settings import GuessNumberConfig
from guess_number.tasks import ranges

_BLANK_MEMORY = 0.5  # share of reflections that are demonstrated without a memory
_LONGEST_TURN = 8  # tokens of a turn that says too much


def tiny_parts(settings: GuessNumberConfig) -> TinyParts | None:
    """The parts of these settings; None for `format: prose`."""
    if settings.format != "compact":
        return None

    def demonstrations(
        stream: random.Random, cold_start: ColdStartConfig
    ) -> Iterator[Sequence[Demonstration]]:
        shown = ranges(settings, "training")
        while True:
            low, high = stream.choice(shown)
            yield demonstrate(stream, range(low, high + 1), settings, cold_start)

    words = (*WORDS, *map(str, range(1, settings.largest + 1)))
    return TinyParts(words, context_length(settings), demonstrations)


def context_length(settings: GuessNumberConfig) -> int:
    """Tokens of the longest sequence that is trained or sampled, with room for turns that say too much."""
    attempt = 6 + SLOTS + (_LONGEST_TURN + 4) * settings.max_guesses
    reflection = 8 + 2 * settings.max_guesses + SLOTS + _LONGEST_TURN
    return max(attempt, reflection)


def demonstrate(
    stream: random.Random, numbers: range, settings: GuessNumberConfig, cold_start: ColdStartConfig
) -> list[Demonstration]:
    """One attempt at a random number of a range and, where it failed, a reflection on it."""
    number = stream.choice(numbers)
    game = Game(numbers[0], numbers[-1], number, settings.max_guesses)
    prompts, texts = CompactPrompts(settings.largest), CompactTexts()
    notes = None if stream.random() < cold_start.blank_notes else _some_truth(stream, numbers, number)
    attempt = prompts.attempt("", texts.opening(game), [slots_text(notes)])
    while True:
        wild = stream.random() < cold_start.random_intent
        guess = game.guess(stream.choice(numbers if wild else possible(notes or numbers, game.guesses)))
        attempt.append(_says(str(guess.number)))
        if game.over:
            break
        attempt.append(user_message(texts.answer(game, guess)))
    if game.found:
        return [attempt]

    memory = None if stream.random() < _BLANK_MEMORY else _some_truth(stream, numbers, number)
    report = AttemptReport(texts.opening(game), texts.trace(game), texts.feedback(game), 0.0)
    asked = prompts.reflection("", report, [slots_text(memory)])
    return [attempt, [*asked, _says(slots_text(possible(memory or numbers, game.guesses)))]]


def _some_truth(stream: random.Random, numbers: range, number: int) -> range:
    """A random part of the numbers that includes this one."""
    return range(stream.randint(numbers[0], number), stream.randint(number, numbers[-1]) + 1)


def _says(text: str) -> Message:
    return {"role": "assistant", "content": text}
