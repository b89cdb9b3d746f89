"""The board of an attempt with the way that the player went, for the user interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from erl_pipeline.environments.frozen_lake.board import Board
from erl_pipeline.environments.frozen_lake.game import game_of
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.pictures import Cell, Picture

_CELLS: Mapping[str, Cell] = {"S": "start", "F": "floor", "H": "hole", "G": "goal"}
_ENDS = {"fell": "fell into a hole", "goal": "reached the goal"}


def attempt_picture(config: FrozenLakeConfig, task: Task, turns: Sequence[str]) -> Picture:
    """The board, and the way of an attempt, found by replaying what the policy said in its turns."""
    board = Board(tuple(task.payload["board"]))
    game = game_of(config, task)
    game.reset()
    for text in turns:
        if game.step(text).done:
            break
    outcomes = [step.outcome for step in game.steps]
    notes = [f"{outcomes.count('bump')} × against the edge"] if "bump" in outcomes else []
    if "bad" in outcomes:
        notes.append(f"{outcomes.count('bad')} × no valid action")
    notes += [_ENDS[outcome] for outcome in outcomes[-1:] if outcome in _ENDS]
    path = [divmod(cell, board.width) for cell in (board.start, *(step.cell for step in game.steps))]
    return Picture([[_CELLS[letter] for letter in row] for row in board.rows], path, notes=notes)
