"""A perfect attempt at a board: a shortest way, said in the hidden words."""

from __future__ import annotations

from erl_pipeline.environments.frozen_lake.board import Board
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.short import short_answer
from erl_pipeline.environments.frozen_lake.world import Symbols
from erl_pipeline.environments.hidden_words.directions import Direction
from erl_pipeline.environments.interface import Task


def gold_answer(config: FrozenLakeConfig, task: Task) -> list[str] | None:
    """The turns of a shortest way, one turn in mode `plan`; None where it is longer than the task allows."""
    words = {direction: word for word, direction in task.payload["actions"].items()}
    board = Board(tuple(task.payload["board"]))
    way = shortest_way(board)
    if len(way) > task.payload["max_steps"]:
        return None
    if config.format == "compact":
        moves = [f"{direction} {words[direction]}" for direction in way]
        return moves if config.action_mode == "step" else [" ".join(moves)]
    if config.action_mode == "step":
        return [f"[{words[direction]}]" for direction in way]
    if config.format == "short":
        return [short_answer(board, Symbols(**task.payload["symbols"]), way, words)]
    return [f"[{' '.join(words[direction] for direction in way)}]"]


def shortest_way(board: Board) -> list[Direction]:
    """The directions of a shortest way from the start to the goal; of several, always the same one."""
    cell, way = board.start, list[Direction]()
    while cell != board.goal:
        direction = board.best_directions(cell)[0]
        way.append(direction)
        cell = board.neighbour(cell, direction)
    return way
