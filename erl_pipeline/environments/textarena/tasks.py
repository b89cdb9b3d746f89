"""The training, held-out and test tasks of a run: seeds, each with a digest of how its game begins."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any, Literal

from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.splits import FindSplit, KeptSplit
from erl_pipeline.environments.textarena.library import Game, games
from erl_pipeline.environments.textarena.settings import TextArenaConfig
from storage.errors import ConfigError

Split = Literal["training", "held_out", "test"]

_QUARTERS: tuple[Split, ...] = ("training", "training", "held_out", "test")
_ASKED_BY: dict[Split, str] = {
    "training": "environment.training_tasks",
    "held_out": "evaluation.tasks",
    "test": "environment.test_tasks",
}
_KEPT: dict[Split, KeptSplit] = {"held_out": "held-out", "test": "test"}
_TRIES_WITHOUT_NEW = 1_000


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
        return _KEPT.get(_split_of(start, settings.test_tasks is not None))

    return find


def start_of(game: Game, name: str, seed: int) -> str:
    """How a game begins with a seed: a digest of its state, and of games that draw in play the seed too."""
    game.begin(seed)
    digest = game.state_digest()
    return f"{digest}-{seed}" if name in games().drawn_in_play else digest


def _split_of(start: str, third: bool) -> Split:
    """Half of all beginnings are trained on, a quarter is held out, and a quarter is for the test, or is
    trained on too where there is no test split."""
    split = _QUARTERS[hashlib.sha256(start.encode()).digest()[0] % len(_QUARTERS)]
    return "training" if split == "test" and not third else split


def _tasks(settings: TextArenaConfig, split: Split, count: int) -> list[Task]:
    """The first `count` beginnings of a split. Raises `ConfigError` where there are fewer, or where the game
    begins in two ways with one seed."""
    if count == 0:
        return []
    game, stream = Game(settings.game), random.Random(f"textarena/{settings.game}/{settings.task_seed}")
    found: dict[str, Task] = {}
    without_new = 0
    while len(found) < count:
        seed = stream.getrandbits(31)
        start = start_of(game, settings.game, seed)
        without_new += 1
        if without_new > _TRIES_WITHOUT_NEW:
            raise ConfigError(
                f"{_ASKED_BY[split]}: {count} tasks of {settings.game} are asked for, but only {len(found)} "
                "different beginnings were found; ask for fewer"
            )
        if start in found or _split_of(start, settings.test_tasks is not None) != split:
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
