"""A perfect attempt at a board: a shortest way, said in the hidden words."""

from __future__ import annotations

from erl_pipeline.environments.frozen_lake.board import Board
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.short import short_answer
from erl_pipeline.environments.frozen_lake.world import Symbols
from erl_pipeline.environments.hidden_words.directions import Direction
from erl_pipeline.environments.hidden_words.gold import turns_of
from erl_pipeline.environments.interface import Task


def gold_answer(config: FrozenLakeConfig, task: Task) -> list[str] | None:
    """The turns of a shortest way, one turn in mode `plan`; None where it is longer than the task allows."""
    board = Board(tuple(task.payload["board"]))
    way = shortest_way(board)
    if len(way) > task.payload["max_steps"]:
        return None
    if config.format == "short":
        words = {direction: word for word, direction in task.payload["actions"].items()}
        return [short_answer(board, Symbols(**task.payload["symbols"]), way, words)]
    return turns_of(way, task.payload["actions"], config.format, config.action_mode)


def shortest_way(board: Board) -> list[Direction]:
    """The directions of a shortest way from the start to the goal; of several, always the same one."""
    cell, way = board.start, list[Direction]()
    while cell != board.goal:
        direction = board.best_directions(cell)[0]
        way.append(direction)
        cell = board.neighbour(cell, direction)
    return way
