"""Whether a board can be solved, in how many moves, and which moves lead there: breadth-first search."""

from __future__ import annotations

from collections import deque
from functools import cached_property

from erl_pipeline.environments.hidden_words.directions import DIRECTIONS, Direction
from erl_pipeline.environments.sokoban.board import Board, State
from erl_pipeline.environments.sokoban.deadlocks import deadlocks
from erl_pipeline.environments.sokoban.moves import move


def push_distances(board: Board) -> dict[int, int]:
    """For each cell, the fewest pushes that bring a box from it to a goal, if no other box is on the board. A
    cell from which no goal can be reached is absent."""
    pushes = dict.fromkeys(board.goals, 0)
    queue = deque(sorted(board.goals))
    while queue:
        cell = queue.popleft()
        for direction in DIRECTIONS:
            # To push a box from `before` to `cell`, the player must be on the other side of `before`.
            before = board.neighbours[direction][cell]
            if before is None or before in pushes or board.neighbours[direction][before] is None:
                continue
            pushes[before] = pushes[cell] + 1
            queue.append(before)
    return pushes


def solution_length(board: Board, most: int | None = None) -> int | None:
    """The fewest moves that bring all boxes onto goals; None where there is no way, or none of at most `most`
    moves."""
    pushes = push_distances(board)
    seen = {board.start}
    edge = [board.start]
    moves = 0
    while edge and (most is None or moves < most):
        moves += 1
        reached: list[State] = []
        for state in edge:
            for direction in DIRECTIONS:
                moved = move(board, state, direction)
                if moved.state in seen:
                    continue
                seen.add(moved.state)
                if moved.pushed:
                    if board.is_solved(moved.state.boxes):
                        return moves
                    needed = pushes_needed(pushes, moved.state.boxes)
                    if needed is None or (most is not None and moves + needed > most):
                        continue
                reached.append(moved.state)
        edge = reached
    return None


class NeedsMoreMoves(ValueError):
    """Raised for a board that may be solved, but not in so few moves."""


def require_solvable(board: Board, max_steps: int) -> None:
    """Raise `ValueError`, saying why, where the board cannot be solved in `max_steps` moves; `NeedsMoreMoves`
    where it may be in more.

    With one box the check is exact. With more boxes it only finds boxes that are lost from the start, and
    boards that need more pushes than there are moves.
    """
    names = deadlocks(board, board.start.boxes)
    if names:
        raise ValueError(f"the board cannot be solved: it begins with a deadlock ({', '.join(names)})")
    needed = pushes_needed(push_distances(board), board.start.boxes)
    if needed is None:
        raise ValueError("the board cannot be solved: a box can be pushed to no goal")
    if needed > max_steps:
        raise NeedsMoreMoves(f"the board needs at least {needed} moves, but max_steps is {max_steps}")
    if len(board.start.boxes) == 1:
        moves = solution_length(board)
        if moves is None:
            raise ValueError("the board cannot be solved")
        if moves > max_steps:
            raise NeedsMoreMoves(f"the board needs {moves} moves, but max_steps is {max_steps}")


def pushes_needed(pushes: dict[int, int], boxes: tuple[int, ...]) -> int | None:
    """A lower bound of the pushes that are still needed; None where a box is lost."""
    needed = 0
    for box in boxes:
        if box not in pushes:
            return None
        needed += pushes[box]
    return needed


class Solutions:
    """The fewest moves to a solution from every state that can be reached on a small board.

    A board with one box and F cells of floor has at most F² states, one with two boxes F³ / 2.
    """

    def __init__(self, board: Board) -> None:
        self._board = board

    def best_directions(self, state: State) -> list[Direction]:
        """The directions that shorten the way to a solution; empty where there is none."""
        here = self._moves.get(state)
        if not here:
            return []
        reached = {direction: move(self._board, state, direction).state for direction in DIRECTIONS}
        return [direction for direction, to in reached.items() if self._moves.get(to) == here - 1]

    @cached_property
    def _moves(self) -> dict[State, int]:
        """The fewest moves from each state that can be reached and from which there is a solution."""
        before = self._reachable()
        queue = deque(state for state in before if self._board.is_solved(state.boxes))
        moves = dict.fromkeys(queue, 0)
        while queue:
            state = queue.popleft()
            for earlier in before[state]:
                if earlier not in moves:
                    moves[earlier] = moves[state] + 1
                    queue.append(earlier)
        return moves

    def _reachable(self) -> dict[State, list[State]]:
        """Each state that can be reached, with the states from which one move leads to it."""
        before: dict[State, list[State]] = {self._board.start: []}
        queue = deque(before)
        while queue:
            state = queue.popleft()
            for direction in DIRECTIONS:
                reached = move(self._board, state, direction).state
                if reached == state:
                    continue
                if reached not in before:
                    before[reached] = []
                    queue.append(reached)
                before[reached].append(state)
        return before
