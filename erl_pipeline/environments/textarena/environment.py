"""A game as an environment: its messages, and a reward at its end."""

from __future__ import annotations

from collections.abc import Sequence

from erl_pipeline.environments.interface import Observation, Task, Transition
from erl_pipeline.environments.messages import AssistantTurn, ToolSchema, user_message
from erl_pipeline.environments.textarena.library import Ending, Game, Said
from erl_pipeline.environments.textarena.settings import TextArenaConfig
from erl_pipeline.environments.textarena.tasks import start_of

_BEGIN = "The game begins. Make your move."
_GO_ON = "Make your next move."
_REFUSED = "A move that the game refuses takes one of them."


class TextArenaEnvironment:
    """The attempts of one episode. The game's closing words are never shown: they may name the solution."""

    tools: Sequence[ToolSchema] = ()

    def __init__(self, settings: TextArenaConfig, task: Task) -> None:
        self._settings = settings
        self._seed: int = task.payload["seed"]
        self._game = Game(task.payload["game"])
        start = start_of(self._game, task.payload["game"], self._seed)
        if start != task.payload["start"]:
            raise RuntimeError(f"{task.task_id}: the game does not begin as it did when the task was made")
        self._most_turns = self._game.limit(settings.max_turns)
        self._ending: Ending | None = None
        self._lines: list[str] = []
        self._turns = 0
        self._last = self._begin()

    @property
    def instructions(self) -> str:
        """The rules, as the game tells them, and how many turns there are."""
        return f"{self._rules}\nAn attempt has at most {_turns(self._most_turns)}. {_REFUSED}"

    async def reset(self) -> Observation:
        self._last = self._begin()
        return self._last

    async def step(self, turn: AssistantTurn) -> Transition:
        said, over = self._game.move(turn.text)
        self._turns += 1
        self._lines.append(f"Move: {turn.text.strip()}")
        if over:
            self._ending = self._game.ending()
        else:
            self._last = said.text or _GO_ON
            self._lines.append(self._last)
        done = over or self._turns == self._most_turns
        return Transition(
            messages=[] if done else [user_message(self._last)],
            reward=self._reward() if done else 0.0,
            done=done,
            metrics={"turns": 1.0},
        )

    async def feedback(self) -> str:
        turns = _turns(self._turns)
        if self._ending is None:
            said = f"The game was not over after {turns}, which were all there are."
        elif self._ending.refusal is not None:
            said = f"The game ended after {turns}. {self._ending.refusal}"
        elif self._ending.score >= 1.0:
            return f"The game was won in {turns}."
        else:
            said = f"The game ended after {turns} and was not won."
        return f"{said} The last that the game had said: {self._last}"

    def trace(self) -> str:
        return "\n".join(self._lines)

    async def close(self) -> None:
        """There is nothing to release."""

    def _begin(self) -> str:
        said: Said = self._game.begin(self._seed)
        self._rules = said.rules
        self._ending, self._turns = None, 0
        observation = said.text or _BEGIN
        self._lines = [observation]
        return observation

    def _reward(self) -> float:
        """0 where the game was not over, or was ended by a move that it refused."""
        if self._ending is None or self._ending.refusal is not None:
            return 0.0
        score = min(max(self._ending.score, 0.0), 1.0)
        return score if self._settings.reward == "score" else float(score == 1.0)


def _turns(count: int) -> str:
    return f"{count} turn" + ("s" if count != 1 else "")


def open_textarena(settings: TextArenaConfig, task: Task) -> TextArenaEnvironment:
    """The environment of a task made by `tasks`."""
    return TextArenaEnvironment(settings, task)
