"""The game in sentences, for language models."""

from __future__ import annotations

import re

from guess_number.game import Answer, Game, Guess

_BRACKETED = re.compile(r"\[\s*(-?[0-9]{1,9})\s*\]")
_ANSWERS: dict[Answer, str] = {
    "higher": "The number is higher.",
    "lower": "The number is lower.",
    "found": "This is the number.",
    "bad": "Your answer held no number in square brackets.",
}


class ProseTexts:
    """All texts of an attempt, as sentences."""

    def instructions(self, game: Game) -> str:
        return (
            "You are to find a number by guessing. After each wrong guess you are told whether the number is "
            f"higher or lower. You have {game.max_guesses} guesses. You may think first; the last number in "
            "square brackets counts."
        )

    def opening(self, game: Game) -> str:
        return (
            f"The number is between {game.low} and {game.high}, both included.\n"
            f"{_remaining(game)} Answer with one number in square brackets, such as [{game.low}]."
        )

    def read(self, text: str) -> int | None:
        found = _BRACKETED.findall(text)
        return int(found[-1]) if found else None

    def answer(self, game: Game, guess: Guess) -> str:
        return f"{_ANSWERS[guess.answer]} {_remaining(game)}"

    def trace(self, game: Game) -> str:
        lines = [f"Between {game.low} and {game.high}."]
        for place, guess in enumerate(game.guesses, start=1):
            said = "no number" if guess.number is None else str(guess.number)
            lines.append(f"Guess {place}: {said}. {_ANSWERS[guess.answer]}")
        return "\n".join(lines)

    def feedback(self, game: Game) -> str:
        used = len(game.guesses)
        if game.found:
            return f"The number was found with guess {used} of {game.max_guesses}."
        return f"The number was not found in {used} guesses."


def _remaining(game: Game) -> str:
    left = game.max_guesses - len(game.guesses)
    return f"{left} guess{'' if left == 1 else 'es'} left."
