"""What people and checks see of an attempt: a way said in the hidden words, and an attempt played again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from erl_pipeline.environments.grid_games.boards import Direction
from erl_pipeline.environments.grid_games.game import GridGame
from erl_pipeline.environments.grid_games.settings import GridSettings
from erl_pipeline.environments.interface import Task

GameT = TypeVar("GameT", bound=GridGame[Any, Any])


def turns_of(way: Sequence[Direction], config: GridSettings, task: Task) -> list[str]:
    """One turn for each direction, or with `action_mode: plan` one for all of them."""
    words = {direction: word for word, direction in task.payload["actions"].items()}
    if config.format == "compact":
        moves = [f"{direction} {words[direction]}" for direction in way]
        return moves if config.action_mode == "step" else [" ".join(moves)]
    if config.action_mode == "step":
        return [f"[{words[direction]}]" for direction in way]
    return [f"[{' '.join(words[direction] for direction in way)}]"]


def replayed(game: GameT, turns: Sequence[str]) -> GameT:
    """The game after these turns of a policy, or after those that ended the attempt."""
    game.reset()
    for text in turns:
        if game.step(text).done:
            break
    return game
