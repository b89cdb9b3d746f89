"""One attempt: its rules and its record, without the conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Answer = Literal["higher", "lower", "found", "bad"]
"""The number is higher or lower than the guess; `bad`: the text held no number."""


@dataclass(frozen=True)
class Guess:
    """A guess, None where the text held none, and the answer to it."""

    number: int | None
    answer: Answer


class Game:
    """The state of one attempt."""

    def __init__(self, low: int, high: int, number: int, max_guesses: int) -> None:
        self.low, self.high, self.max_guesses = low, high, max_guesses
        self._number = number
        self._guesses: list[Guess] = []

    @property
    def guesses(self) -> Sequence[Guess]:
        """What was guessed so far."""
        return self._guesses

    @property
    def found(self) -> bool:
        """Whether the last guess was right."""
        return bool(self._guesses) and self._guesses[-1].answer == "found"

    @property
    def over(self) -> bool:
        """Whether no further guess can be made."""
        return self.found or len(self._guesses) == self.max_guesses

    def guess(self, number: int | None) -> Guess:
        """Make a guess; None stands for a text without a number."""
        made = Guess(number, self._answer(number))
        self._guesses.append(made)
        return made

    def possible(self) -> range:
        """The numbers that are still possible after the answers so far."""
        return possible(range(self.low, self.high + 1), self._guesses)

    def _answer(self, number: int | None) -> Answer:
        if number is None:
            return "bad"
        if number == self._number:
            return "found"
        return "higher" if self._number > number else "lower"


def possible(numbers: range, guesses: Sequence[Guess]) -> range:
    """The numbers that are still possible after the answers to these guesses."""
    first, last = numbers[0], numbers[-1]
    for guess in guesses:
        if guess.number is None:
            continue
        if guess.answer == "higher":
            first = max(first, guess.number + 1)
        elif guess.answer == "lower":
            last = min(last, guess.number - 1)
        else:
            first = last = guess.number
    return range(first, last + 1)
