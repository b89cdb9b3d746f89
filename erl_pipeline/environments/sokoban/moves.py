"""The rules of moving: the player walks, and pushes one box at a time."""

from __future__ import annotations

from typing import Literal, NamedTuple

from erl_pipeline.environments.hidden_words.directions import Direction
from erl_pipeline.environments.sokoban.board import Board, State

Outcome = Literal["up", "right", "down", "left", "wall", "box_wall", "box_box"]
"""The direction that the player really moved in, or why nothing moved: a wall, a box with a wall behind it,
or a box with another box behind it."""


class Moved(NamedTuple):
    """What a move led to. A move without effect leaves the state as it was."""

    outcome: Outcome
    state: State
    pushed: bool


def move(board: Board, state: State, direction: Direction) -> Moved:
    """One move in a direction."""
    beside = board.neighbours[direction]
    to = beside[state.player]
    if to is None:
        return Moved("wall", state, False)
    if to not in state.boxes:
        return Moved(direction, State(to, state.boxes), False)
    behind = beside[to]
    if behind is None:
        return Moved("box_wall", state, False)
    if behind in state.boxes:
        return Moved("box_box", state, False)
    boxes = tuple(sorted(behind if box == to else box for box in state.boxes))
    return Moved(direction, State(to, boxes), True)
