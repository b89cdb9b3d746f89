"""The game in words of one token each, and what the cold start of a tiny policy needs.

A turn of the policy is one number, and the answer to it is one word. A reflection is two slots: the least and
the largest number that are still possible, or `?`. Every word of a prompt has a fixed place. The scripted
player guesses any number that is still possible. It knows the order of the numbers, but not that the middle
is the best guess: that is left to be learned.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.demonstrations import Demonstration, TinyParts
from erl_pipeline.environments.messages import Message, user_message
from erl_pipeline.environments.prompt_format import AttemptReport
from guess_number.game import Game, Guess, GuessNumberConfig, possible, ranges

_BLANK_MEMORY = 0.5  # share of reflections that are demonstrated without a memory
_LONGEST_TURN = 8  # tokens of a turn that says too much
UNKNOWN, PADDING = "?", "."
SLOTS = 2
WORDS = (UNKNOWN, PADDING, "notes", "trace", "memory", "reflect", "higher", "lower", "bad", "found", "lost")


class CompactTexts:
    """All texts of an attempt, as words."""

    def instructions(self, game: Game) -> str:
        return ""

    def opening(self, game: Game) -> str:
        return f"{game.low} {game.high}"

    def read(self, text: str) -> int | None:
        """The number, when the text holds nothing else and it has no more digits than a task may have."""
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None

    def answer(self, game: Game, guess: Guess) -> str:
        return guess.answer

    def trace(self, game: Game) -> str:
        """`guess answer` for each guess, padded to the width of a whole attempt."""
        words = []
        for guess in game.guesses:
            words += [PADDING if guess.number is None else str(guess.number), guess.answer]
        return " ".join(words + [PADDING] * (2 * game.max_guesses - len(words)))

    def feedback(self, game: Game) -> str:
        return "found" if game.found else "lost"


class CompactPrompts:
    """Prompts of fixed width. `largest` is the largest number that a reflection may name."""

    def __init__(self, largest: int) -> None:
        self._allowed = {UNKNOWN, *map(str, range(1, largest + 1))}

    def attempt(self, instructions: str, observation: str, notes: Sequence[str]) -> list[Message]:
        return [user_message(f"{observation} notes {_merged(reversed(notes))}")]

    def retry(self, instructions: str, report: AttemptReport, notes: Sequence[str]) -> list[Message]:
        """The attempt prompt, then the failed attempt. The cold start shows none of these."""
        slots = _merged(reversed(notes))
        return [user_message(f"{report.observation} notes {slots} trace {report.trace} {report.feedback}")]

    def reflection(self, instructions: str, report: AttemptReport, memory: Sequence[str]) -> list[Message]:
        asked = (
            f"{report.observation} trace {report.trace} {report.feedback} memory {_merged(memory)} reflect"
        )
        return [user_message(asked)]

    def read_reflection(self, text: str) -> str | None:
        words = text.split()
        return " ".join(words) if len(words) == SLOTS and self._allowed.issuperset(words) else None


def slots_text(numbers: range | None) -> str:
    """A reflection that knows these numbers to be possible; None: it knows nothing."""
    return " ".join([UNKNOWN] * SLOTS) if numbers is None else f"{numbers.start} {numbers.stop - 1}"


def _merged(reflections: Iterable[str]) -> str:
    """One line of slots, each from the first reflection that knows it: preferred reflections come first."""
    slots = [UNKNOWN] * SLOTS
    for reflection in reflections:
        slots = [new if old == UNKNOWN else old for old, new in zip(slots, reflection.split(), strict=True)]
    return " ".join(slots)


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
