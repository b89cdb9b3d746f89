"""A perfect attempt at a board: a way to its solution, said in the hidden words."""

from __future__ import annotations

import heapq

from erl_pipeline.environments.hidden_words.directions import DIRECTIONS, Direction
from erl_pipeline.environments.hidden_words.gold import turns_of
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.sokoban.board import Board, State
from erl_pipeline.environments.sokoban.deadlocks import deadlocks
from erl_pipeline.environments.sokoban.moves import move
from erl_pipeline.environments.sokoban.settings import SokobanConfig
from erl_pipeline.environments.sokoban.solving import push_distances, pushes_needed

MOST_STATES = 50_000
"""The most states that are searched, in some seconds. A board that needs more has no gold answer."""
_PUSH_WEIGHT = 8
"""How many moves each push that is still needed counts for. With 1 the search finds a shortest way, but four
boxes on ten by ten cells then take a hundred times as many states."""


def gold_answer(config: SokobanConfig, task: Task) -> list[str] | None:
    """The turns of a way to the solution, one turn in mode `plan`; None where no way was found within the
    moves that the task allows."""
    way = solution(Board(tuple(task.payload["board"])), task.payload["max_steps"])
    if way is None:
        return None
    return turns_of(way, task.payload["actions"], config.format, config.action_mode)


def solution(board: Board, most: int, most_states: int = MOST_STATES) -> list[Direction] | None:
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
            _, to, pushed = move(board, state, direction)
            made = moves[state] + 1
            if made >= moves.get(to, most + 1):
                continue
            needed = pushes_needed(pushes, to.boxes)
            if needed is None or made + needed > most or (pushed and deadlocks(board, to.boxes)):
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
