"""The game in words of one token each, for the tiny policy.

A turn of the policy is one number, and the answer to it is one word. A reflection is two slots: the least and
the largest number that are still possible, or `?`. Every word of a prompt has a fixed place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from erl_pipeline.environments.messages import Message, user_message
from erl_pipeline.environments.prompt_format import AttemptReport
from guess_number.game import Game, Guess

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
