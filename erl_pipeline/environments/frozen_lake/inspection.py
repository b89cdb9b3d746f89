"""FrozenLake for people and checks: a perfect attempt, and pictures of attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from erl_pipeline.environments.frozen_lake.game import (
    FrozenLakeBoard,
    FrozenLakeSymbols,
    game_of,
    short_answer,
)
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.grid_games.boards import Direction
from erl_pipeline.environments.grid_games.hidden_words import stored_world
from erl_pipeline.environments.grid_games.inspection import replayed, turns_of
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.pictures import Cell, Picture

_CELLS: Mapping[str, Cell] = {"S": "start", "F": "floor", "H": "hole", "G": "goal"}
_ENDS = {"fell": "fell into a hole", "goal": "reached the goal"}


def gold_answer(config: FrozenLakeConfig, task: Task) -> list[str] | None:
    """The turns of a shortest way, one turn in mode `plan`; None where it is longer than the task allows."""
    board = FrozenLakeBoard(tuple(task.payload["board"]))
    way = shortest_way(board)
    if len(way) > task.payload["max_steps"]:
        return None
    if config.format == "short":
        world = stored_world(task.payload, FrozenLakeSymbols)
        return [short_answer(board, world.symbols, way, world.words)]
    return turns_of(way, config, task)


def shortest_way(board: FrozenLakeBoard) -> list[Direction]:
    """The directions of a shortest way from the start to the goal; of several, always the same one."""
    cell, way = board.start, list[Direction]()
    while cell != board.goal:
        way.append(board.best_directions(cell)[0])
        cell = board.neighbour(cell, way[-1])
    return way


def attempt_picture(config: FrozenLakeConfig, task: Task, turns: Sequence[str]) -> Picture:
    """The board, and the way of an attempt, found by replaying what the policy said in its turns."""
    game = replayed(game_of(config, task), turns)
    board, outcomes = game.board, [step.outcome for step in game.steps]
    notes = [f"{outcomes.count('bump')} × against the edge"] if "bump" in outcomes else []
    if "bad" in outcomes:
        notes.append(f"{outcomes.count('bad')} × no valid action")
    notes += [_ENDS[outcome] for outcome in outcomes[-1:] if outcome in _ENDS]
    path = [divmod(cell, board.width) for cell in (board.start, *(step.state for step in game.steps))]
    return Picture([[_CELLS[letter] for letter in row] for row in board.rows], path, notes=notes)
