"""A game of the library, made repeatable.

The games draw from the global random generator, also while they are played. Each game here has its own state
of that generator, which is put in place for its calls, under a lock. So other games, in whatever thread, do
not change what it draws.
"""

import hashlib
import io
import json
import random
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, TypeVar

from erl_pipeline.environments.tasks import require_version

VERSION = "0.7.4"
"""The list of qualified games is for this version."""

LONGEST_MOVE = 1_000

_LOST = "No moves left"
"""How the reason of a lost game of 2048 begins. Its score counts merges too, and can be 1 without the
tile that is wanted."""
_MOST_FOR_LOST = 0.99

_TELL_THEIR_TURNS = {"GuessTheNumber", "LightsOut", "Mastermind"}
"""Games that tell a number of turns, which is their attribute `max_turns`."""

_LOCK = threading.Lock()

Result = TypeVar("Result")


@dataclass(frozen=True)
class Said:
    """What the game said: its rules, which it tells once, and all else."""

    rules: str
    text: str


@dataclass(frozen=True)
class Ending:
    """How a game ended. `score` is the game's own; `refusal`: what was wrong with the move that ended it."""

    score: float
    refusal: str | None


class Game:
    """One game for one player. Raises `ConfigError` where the package is missing or another version."""

    def __init__(self, name: str) -> None:
        require_version("textarena", VERSION)
        self._name = name
        self._random: Any = None
        self._env = self._call(lambda: _make(name))

    @property
    def least_turns(self) -> int:
        """The turns without which the game that has begun cannot be won, where they are known: a turn of 2048
        brings a tile of 4 at most, and one of Sudoku fills one cell."""
        if self._name.startswith("Sudoku"):
            return sum(row.count(0) for row in self._env.game_board)
        return int(self._env.target_tile) // 4 - 1 if self._name.startswith("2048") else 1

    def limit(self, turns: int) -> int:
        """Have the game tell no more than these turns from its next beginning on; returns the turns that an
        attempt has: these, or fewer where the game itself tells fewer."""
        if self._name.partition("-")[0] not in _TELL_THEIR_TURNS:
            return turns
        self._env.max_turns = min(int(self._env.max_turns), turns)
        return int(self._env.max_turns)

    def begin(self, seed: int) -> Said:
        """Begin another game; equal seeds give equal games."""
        with _LOCK:
            held = random.getstate()
            random.seed(seed)
            self._random = random.getstate()
            random.setstate(held)
        self._call(lambda: self._env.reset(num_players=1, seed=seed))
        return self._said()

    def move(self, text: str) -> tuple[Said, bool]:
        """Make a move; returns the game's reply, and whether the game is over.

        Of a longer text the game gets the last `LONGEST_MOVE` characters: some games fail on huge numbers.
        """
        done, _ = self._call(lambda: self._env.step(text[-LONGEST_MOVE:]))
        return self._said(), bool(done)

    def ending(self) -> Ending:
        """How the game ended, once it is over."""
        rewards, info = self._env.close()
        told = info[0]
        score, reason = float(rewards[0]), str(told["reason"])
        if reason.startswith(_LOST):
            score = min(score, _MOST_FOR_LOST)
        return Ending(score, reason if told["invalid_move"] else None)

    def state_digest(self) -> str:
        """A digest of the game's whole state, the same in every process."""
        state = json.dumps(_plain(vars(self._env.env if hasattr(self._env, "env") else self._env)))
        return hashlib.sha256(state.encode()).hexdigest()[:16]

    def _said(self) -> Said:
        _, observed = self._env.get_observation()
        rules = [text for _, text, kind in observed if kind.name == "PROMPT"]
        others = [text for _, text, kind in observed if kind.name not in ("PROMPT", "PLAYER_ACTION")]
        return Said("\n".join(rules).strip(), "\n".join(others).strip())

    def _call(self, function: Callable[[], Result]) -> Result:
        with _LOCK, self._own_random(), redirect_stdout(io.StringIO()):  # Some games print.
            return function()

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        held = random.getstate()
        if self._random is not None:
            random.setstate(self._random)
        try:
            yield
        finally:
            self._random = random.getstate()
            random.setstate(held)


def _make(name: str) -> Any:
    import textarena

    return textarena.make(f"{name}-raw")


def _plain(value: Any) -> Any:
    """A value for JSON that is the same in every process: sets are sorted, objects are their attributes."""
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, dict):
        return sorted([json.dumps(_plain(key)), _plain(each)] for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(_plain(each)) for each in value)
    name = type(value).__qualname__
    return [name, _plain(vars(value))] if hasattr(value, "__dict__") and not callable(value) else name


LIST = "games.toml"


@dataclass(frozen=True)
class Games:
    """The list. `qualified`: names. `drawn_in_play`: those of them that draw random numbers after their
    beginning too. `refused`: name -> why."""

    qualified: frozenset[str]
    drawn_in_play: frozenset[str]
    refused: Mapping[str, str]


@lru_cache(maxsize=1)
def games() -> Games:
    """The list of this version; read once."""
    record = tomllib.loads(files(__package__).joinpath(LIST).read_text(encoding="utf-8"))
    return Games(frozenset(record["qualified"]), frozenset(record["drawn_in_play"]), dict(record["refused"]))


def require_qualified(game: str) -> None:
    """Raise `ValueError`, with the reason, for a game that cannot be trained on."""
    listed = games()
    if game in listed.qualified:
        return
    if game in listed.refused:
        raise ValueError(f"game: {game} of TextArena is refused: {listed.refused[game]}")
    raise ValueError(
        f"game: {game}: TextArena has no game of this name for one player; there are "
        f"{', '.join(sorted(listed.qualified))}"
    )
