"""Sokoban for people and checks: a perfect attempt, and pictures of attempts."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from erl_pipeline.environments.grid_games.boards import DIRECTIONS, Direction
from erl_pipeline.environments.grid_games.inspection import replayed, turns_of
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.pictures import Cell, Picture
from erl_pipeline.environments.sokoban.board import (
    SokobanBoard,
    State,
    deadlocks,
    push_distances,
    pushes_needed,
)
from erl_pipeline.environments.sokoban.game import game_of, is_push
from erl_pipeline.environments.sokoban.settings import SokobanConfig

_CELLS: Mapping[str, Cell] = {
    "#": "wall",
    "@": "start",
    "+": "start",
    "$": "box",
    "*": "box_on_goal",
    ".": "goal",
    " ": "floor",
}

MOST_STATES = 50_000
"""The most states that are searched, in some seconds. A board that needs more has no gold answer."""
_PUSH_WEIGHT = 8
"""How many moves each push that is still needed counts for. With 1 the search finds a shortest way, but four
boxes on ten by ten cells then take a hundred times as many states."""


def gold_answer(config: SokobanConfig, task: Task) -> list[str] | None:
    """The turns of a way to the solution, one turn in mode `plan`; None where no way was found within the
    moves that the task allows."""
    way = solution(SokobanBoard(tuple(task.payload["board"])), task.payload["max_steps"])
    if way is None:
        return None
    return turns_of(way, config, task)


def solution(board: SokobanBoard, most: int, most_states: int = MOST_STATES) -> list[Direction] | None:
    """The directions of at most `most` moves that bring all boxes onto goals, not always the fewest; None
    where there are none, or none within `most_states` states. Always the same ones for the same board.

    Weighted A*: the next state is the one with the smallest sum of moves made and weighted pushes needed.
    """
    pushes = push_distances(board)
    came: dict[State, tuple[State, Direction]] = {}
    moves = {board.start: 0}
    waiting = [(0, 0, board.start)]
    while waiting and len(moves) <= most_states:
        _, _, state = heapq.heappop(waiting)
        if board.is_solved(state.boxes):
            return _way(came, state)
        for direction in DIRECTIONS:
            _, to = board.move(state, direction)
            made = moves[state] + 1
            if made >= moves.get(to, most + 1):
                continue
            needed = pushes_needed(pushes, to.boxes)
            if (
                needed is None
                or made + needed > most
                or (to.boxes != state.boxes and deadlocks(board, to.boxes))
            ):
                continue
            moves[to] = made
            came[to] = state, direction
            heapq.heappush(waiting, (made + _PUSH_WEIGHT * needed, len(came), to))
    return None


def _way(came: dict[State, tuple[State, Direction]], state: State) -> list[Direction]:
    """The directions from the start to a state."""
    way: list[Direction] = []
    while state in came:
        state, direction = came[state]
        way.append(direction)
    return way[::-1]


def attempt_picture(config: SokobanConfig, task: Task, turns: Sequence[str]) -> Picture:
    """The board as it began, the player's way, and the boxes at the end, found by replaying what the policy
    said in its turns."""
    game = replayed(game_of(config, task), turns)
    width = game.board.width
    without_effect = sum(step.without_effect for step in game.steps)
    pushes = sum(map(is_push, game.steps))
    bad = sum(step.action is None for step in game.steps)
    notes = [f"{pushes} push{'' if pushes == 1 else 'es'}"]
    notes += [f"{without_effect} × without effect"] if without_effect else []
    notes += [f"{bad} × no valid action"] if bad else []
    players = (game.board.start.player, *(step.state.player for step in game.steps))
    return Picture(
        [[_CELLS[letter] for letter in row] for row in game.board.rows],
        [divmod(cell, width) for cell in players],
        [divmod(cell, width) for cell in game.state.boxes],
        notes,
    )
