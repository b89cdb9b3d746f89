"""The game as an environment: what the policy says in; messages, reward and true feedback out."""

from __future__ import annotations

from collections.abc import Sequence

from erl_pipeline.environments.interface import Observation, Task, Transition
from erl_pipeline.environments.messages import AssistantTurn, ToolSchema, user_message
from guess_number.game import Game, Guess, GuessNumberConfig, ProseTexts, Texts
from guess_number.tiny import CompactTexts


class GuessNumber:
    """The attempts of one episode. It never waits, so nothing in it has to be awaited."""

    tools: Sequence[ToolSchema] = ()

    def __init__(self, settings: GuessNumberConfig, task: Task) -> None:
        self._settings = settings
        self._task = task
        self._texts: Texts = CompactTexts() if settings.format == "compact" else ProseTexts()
        self._game = self._begin()

    @property
    def instructions(self) -> str:
        return self._texts.instructions(self._game)

    async def reset(self) -> Observation:
        self._game = self._begin()
        return self._texts.opening(self._game)

    async def step(self, turn: AssistantTurn) -> Transition:
        possible = self._game.possible()
        guess = self._game.guess(self._texts.read(turn.text))
        return Transition(
            messages=[user_message(self._texts.answer(self._game, guess))],
            reward=reward(guess),
            done=self._game.over,
            # Their sums over an attempt are: how many guesses it took, and how many of them were wasted.
            metrics={"guesses": 1.0, "wasted_guesses": float(guess.number not in possible)},
        )

    async def feedback(self) -> str:
        return self._texts.feedback(self._game)

    def trace(self) -> str:
        return self._texts.trace(self._game)

    async def close(self) -> None:
        """There is nothing to release."""

    def _begin(self) -> Game:
        return Game(**self._task.payload, max_guesses=self._settings.max_guesses)


def reward(guess: Guess) -> float:
    """1 for the right number."""
    return 1.0 if guess.answer == "found" else 0.0


def gold_answer(settings: GuessNumberConfig, task: Task) -> str:
    """A perfect attempt: the right number as the first guess."""
    number = task.payload["number"]
    return str(number) if settings.format == "compact" else f"[{number}]"
