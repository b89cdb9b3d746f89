"""A game as an environment: its tasks, which are seeds with a digest of how the game begins, its messages,
and a reward at its end."""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, field_validator

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.environments.interface import FindSplit, KeptSplit, Observation, Split, Task, Transition
from erl_pipeline.environments.messages import AssistantTurn, ToolSchema, user_message
from erl_pipeline.environments.tasks import KEPT, hashed_split
from erl_pipeline.environments.textarena.library import Ending, Game, Said, games, require_qualified
from storage.errors import ConfigError


class TextArenaConfig(PluginSettings):
    """A game of TextArena for one player, as one conversation."""

    type: Literal["textarena"] = "textarena"
    game: str = "Mastermind-v0"
    """The game, by TextArena's id without `-raw` and `-train`."""
    training_tasks: int = Field(default=256, ge=1, le=100_000)
    """Training tasks, each a beginning of the game that no other task has."""
    test_tasks: int | None = Field(default=None, ge=1, le=100_000)
    """Tasks of a third split. Only `compare` uses it, for its report. `null`: there is none, and its
    beginnings may be trained on."""
    task_seed: int = Field(default=0, ge=0)
    """The tasks derive from it alone, so that runs with different seeds share their tasks."""
    max_turns: int = Field(default=20, ge=1)
    """The most turns of one attempt, which the policy is told; the game's own limit may be lower. A move that
    the game refuses costs a turn."""
    reward: Literal["won", "score"] = "won"
    """`won`: 1 for a game with the full score, 0 for all others. `score`: the game's own score at its end,
    from 0 to 1; most games give part of the score for part of the solution. Where the turns run
    out before the game is over, as in Mastermind and GuessTheNumber, it is 0. LightsOut is over then."""

    @field_validator("game")
    @classmethod
    def _that_qualifies(cls, game: str) -> str:
        require_qualified(game)
        return game


_ASKED_BY: dict[Split, str] = {
    "training": "environment.training_tasks",
    "held_out": "evaluation.tasks",
    "test": "environment.test_tasks",
}
_TRIES_WITHOUT_NEW = 1_000
_TOO_LONG_IN_A_ROW = 100


def training_tasks(settings: TextArenaConfig, seed: int) -> list[Task]:
    """Beginnings that are all different. The run's seed changes nothing."""
    return _tasks(settings, "training", settings.training_tasks)


def held_out_tasks(settings: TextArenaConfig, seed: int, count: int) -> list[Task]:
    """Beginnings that no training task has."""
    return _tasks(settings, "held_out", count)


def test_tasks(settings: TextArenaConfig, seed: int) -> list[Task]:
    """Beginnings that are neither trained on nor held out; none without `test_tasks`."""
    return _tasks(settings, "test", settings.test_tasks or 0)


def start_key(payload: Mapping[str, Any]) -> str:
    """How the game begins; two seeds can begin it in the same way."""
    return f"{payload.get('game')} {payload.get('start')}"


def kept_split(settings: TextArenaConfig, seed: int) -> FindSplit:
    """Tells whether a beginning of the game is kept from training. The run's seed changes nothing."""

    def find(payload: Mapping[str, Any]) -> KeptSplit | None:
        start = payload.get("start")
        if payload.get("game") != settings.game or not isinstance(start, str):
            return None
        return KEPT.get(hashed_split(start, test=settings.test_tasks is not None))

    return find


def start_of(game: Game, name: str, seed: int) -> str:
    """How a game begins with a seed: a digest of its state, and of games that draw in play the seed too."""
    game.begin(seed)
    digest = game.state_digest()
    return f"{digest}-{seed}" if name in games().drawn_in_play else digest


def _tasks(settings: TextArenaConfig, split: Split, count: int) -> list[Task]:
    """The first `count` beginnings of a split that can be won in `max_turns`. Raises `ConfigError` where
    there are fewer, or where the game begins in two ways with one seed."""
    if count == 0:
        return []
    game = Game(settings.game)
    found: dict[str, Task] = {}
    without_new = 0
    beginnings = _beginnings(settings, game)
    while len(found) < count:
        seed, start = next(beginnings)
        without_new += 1
        if without_new > _TRIES_WITHOUT_NEW:
            raise ConfigError(
                f"{_ASKED_BY[split]}: {count} tasks of {settings.game} are asked for, but only {len(found)} "
                "different beginnings were found; ask for fewer"
            )
        if start in found or hashed_split(start, test=settings.test_tasks is not None) != split:
            continue
        if start_of(game, settings.game, seed) != start:
            raise ConfigError(
                f"environment: {settings.game} begins in two ways with one seed, so that no attempt could be "
                "repeated; choose another game"
            )
        task_id = f"{settings.game}-{split}-{settings.task_seed}-{len(found):05d}"
        payload = {"game": settings.game, "seed": seed, "start": start}
        found[start] = Task(task_id, f"textarena-{settings.game}", "textarena", payload)
        without_new = 0
    return list(found.values())


def _beginnings(settings: TextArenaConfig, game: Game) -> Iterator[tuple[int, str]]:
    """Seeds, and how the game begins with each, where it can be won in `max_turns`. Raises `ConfigError`
    where hardly any can."""
    stream = random.Random(f"textarena/{settings.game}/{settings.task_seed}")
    too_long: list[int] = []  # the turns of those since the last that can be won
    while len(too_long) < _TOO_LONG_IN_A_ROW:
        seed = stream.getrandbits(31)
        try:
            start = start_of(game, settings.game, seed)
        except ArithmeticError:  # LightsOut divides by the lights that are on, and there may be none.
            continue
        if game.least_turns > settings.max_turns:
            too_long.append(game.least_turns)
            continue
        too_long.clear()
        yield seed, start
    raise ConfigError(
        f"environment.max_turns: {settings.max_turns}; {len(too_long)} beginnings of {settings.game} in a "
        f"row take {min(too_long)} turns or more to be won; allow more turns"
    )


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
    return TextArenaEnvironment(settings, task)
