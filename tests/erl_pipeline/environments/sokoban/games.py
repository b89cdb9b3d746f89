"""Games on boards that tests write down, in a world where `p q r s` move up, right, down and left."""

from __future__ import annotations

from collections.abc import Sequence

from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.sokoban.game import Sokoban, game_of
from erl_pipeline.environments.sokoban.settings import SokobanConfig

# Cells in the compact format, which leaves the border out: c0 to c3 / c4 to c7 / c8 to c11.
ROWS = ("######", "#    #", "# @$.#", "#    #", "######")
# After one push up, the box is along a wall without a goal; after one more to the left, it is in a corner.
TRAP = ("#####", "#   #", "# $ #", "# @.#", "#####")
ACTIONS = {"p": "up", "q": "right", "r": "down", "s": "left"}
SYMBOLS = {
    "player": "A",
    "player_on_goal": "a",
    "box": "B",
    "box_on_goal": "b",
    "goal": "C",
    "floor": "D",
    "wall": "E",
}


def settings(**changes: object) -> SokobanConfig:
    return SokobanConfig.model_validate({"rows": (5, 5), "columns": (6, 6)} | changes)


def task(rows: Sequence[str] = ROWS, max_steps: int = 4) -> Task:
    payload = {"board": list(rows), "max_steps": max_steps, "actions": ACTIONS, "symbols": SYMBOLS}
    return Task("task", "sokoban-5x6", "sokoban", payload)


def opened(rows: Sequence[str] = ROWS, max_steps: int = 4, **changes: object) -> Sokoban:
    """A game whose attempt has begun."""
    changes.setdefault("max_steps", max_steps)
    changes.setdefault("solution_length", (1, 1))
    game = game_of(settings(**changes), task(rows, max_steps))
    game.reset()
    return game
