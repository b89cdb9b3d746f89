"""Sokoban's boards: the rules of moving, deadlocks, and whether a board can be solved."""

from collections import deque
from collections.abc import Sequence
from functools import cached_property
from typing import Literal, NamedTuple

from erl_pipeline.environments.grid_games.boards import DIRECTIONS, Direction, GridBoard, require_letters

LETTERS = "#@+$*. "
"""The usual letters of Sokoban levels: wall, player, player on goal, box, box on goal, goal, floor."""

BLOCKED = ("wall", "box_wall", "box_box")
"""Why nothing moved: a wall, a box with a wall behind it, or a box with another box behind it."""

Deadlock = Literal["corner", "wall", "square"]
"""`corner`: a box in a corner that is no goal. `wall`: boxes along a wall that they cannot leave, with too
few goals along it. `square`: four cells in a square, all of them boxes or walls, with two boxes or more, at
least one of them not on a goal."""

_ACROSS: tuple[tuple[Direction, tuple[Direction, Direction]], ...] = (
    ("up", ("left", "right")),
    ("right", ("up", "down")),
    ("down", ("left", "right")),
    ("left", ("up", "down")),
)
"""Each side of a box, and the two ways along it."""


class State(NamedTuple):
    """What moves on a board. The boxes are in the order of their cells, so that equal states are equal."""

    player: int
    boxes: tuple[int, ...]


class SokobanBoard(GridBoard[State]):
    """Rows of the letters in `LETTERS`."""

    @cached_property
    def goals(self) -> frozenset[int]:
        return self._cells(".*+")

    @cached_property
    def start(self) -> State:
        (player,) = self._cells("@+")
        return State(player, tuple(sorted(self._cells("$*"))))

    @cached_property
    def has_border(self) -> bool:
        """Whether there are walls all around."""
        sides = {*self.rows[0], *self.rows[-1], *(row[0] + row[-1] for row in self.rows)}
        return set("".join(sides)) == {"#"}

    @cached_property
    def neighbours(self) -> dict[Direction, tuple[int | None, ...]]:
        """For each direction and cell, the cell beside it; None for a wall, and outside the board."""
        beside = {d: [self.beside(cell, d) for cell in range(len(self.letters))] for d in DIRECTIONS}
        return {
            direction: tuple(None if to is None or self.letters[to] == "#" else to for to in cells)
            for direction, cells in beside.items()
        }

    def move(self, state: State, direction: Direction) -> tuple[str, State]:
        """The player walks, or pushes one box. The direction or why nothing moved, and the state."""
        beside = self.neighbours[direction]
        to = beside[state.player]
        if to is None:
            return "wall", state
        if to not in state.boxes:
            return direction, State(to, state.boxes)
        behind = beside[to]
        if behind is None:
            return "box_wall", state
        if behind in state.boxes:
            return "box_box", state
        return direction, State(to, tuple(sorted(behind if box == to else box for box in state.boxes)))

    def is_over(self, state: State) -> bool:
        return self.is_solved(state.boxes)

    def is_solved(self, boxes: Sequence[int]) -> bool:
        """Whether every box is on a goal."""
        return self.goals.issuperset(boxes)

    def boxes_on_goals(self, boxes: Sequence[int]) -> int:
        return len(self.goals.intersection(boxes))

    def _cells(self, letters: str) -> frozenset[int]:
        return frozenset(cell for cell, letter in enumerate(self.letters) if letter in letters)


def parse_board(rows: Sequence[str]) -> SokobanBoard:
    """The board of these rows, in which `-` is floor too; raises `ValueError` saying what is wrong with them.

    Whether it can be solved is another question (`require_solvable`).
    """
    require_letters(rows, LETTERS + "-", "# @ + $ * . and for floor a space or -")
    letters = "".join(rows)
    players, boxes, goals = (sum(letters.count(each) for each in group) for group in ("@+", "$*", ".*+"))
    if players != 1:
        raise ValueError(f"players (@ or +): {players}; a board needs one")
    if boxes == 0:
        raise ValueError("the board has no box ($ or *)")
    if boxes != goals:
        raise ValueError(
            f"boxes ($ or *): {boxes}, goals (. * or +): {goals}; a board needs as many goals as boxes"
        )
    board = SokobanBoard(tuple(row.replace("-", " ") for row in rows))
    if board.is_solved(board.start.boxes):
        raise ValueError("all boxes are on goals already")
    return board


def deadlocks(board: SokobanBoard, boxes: Sequence[int]) -> list[Deadlock]:
    """The kinds of deadlocks of these boxes, each once, in the order of `Deadlock`. Boxes in a deadlock can
    never all be brought onto goals, whatever the player does.

    Only deadlocks that can be seen at a glance are found; a board may be lost without any of them.
    """
    found: list[Deadlock] = []
    if any(_in_corner(board, box) for box in boxes if box not in board.goals):
        found.append("corner")
    if any(_bound_to_wall(board, box, boxes) for box in boxes):
        found.append("wall")
    if any(_in_square(board, box, boxes) for box in boxes if box not in board.goals):
        found.append("square")
    return found


def _is_wall(board: SokobanBoard, cell: int, side: Direction) -> bool:
    return board.neighbours[side][cell] is None


def _in_corner(board: SokobanBoard, box: int) -> bool:
    upright = _is_wall(board, box, "up") or _is_wall(board, box, "down")
    return upright and (_is_wall(board, box, "left") or _is_wall(board, box, "right"))


def _bound_to_wall(board: SokobanBoard, box: int, boxes: Sequence[int]) -> bool:
    """Whether a box that is in no corner is along an unbroken wall between two corners, with fewer goals than
    boxes along it."""
    if _in_corner(board, box):
        return False
    for side, ways in _ACROSS:
        along = _along_wall(board, box, side, ways)
        if along and len(along.intersection(boxes)) > len(along & board.goals):
            return True
    return False


def _along_wall(
    board: SokobanBoard, box: int, side: Direction, ways: tuple[Direction, Direction]
) -> set[int]:
    """The cells that a box can be pushed to along this wall; empty where it can leave the wall."""
    along: set[int] = set()
    for way in ways:
        cell: int | None = box
        while cell is not None:
            if not _is_wall(board, cell, side):
                return set()
            along.add(cell)
            cell = board.neighbours[way][cell]
    return along


def _in_square(board: SokobanBoard, box: int, boxes: Sequence[int]) -> bool:
    """Whether the other three cells of some square with this box are walls or boxes, at least one a box."""
    for side in ("up", "down"):
        for way in ("left", "right"):
            around = _square(board, box, side, way)
            if all(cell is None or cell in boxes for cell in around) and any(
                cell in boxes for cell in around
            ):
                return True
    return False


def _square(
    board: SokobanBoard, box: int, side: Literal["up", "down"], way: Literal["left", "right"]
) -> list[int | None]:
    """The other three cells of a square; None for a wall."""
    row, column = divmod(box, board.width)
    row, column = row + (1 if side == "down" else -1), column + (1 if way == "right" else -1)
    inside = 0 <= row < board.height and 0 <= column < board.width
    corner = row * board.width + column
    open_corner = inside and board.letters[corner] != "#"
    return [board.neighbours[side][box], board.neighbours[way][box], corner if open_corner else None]


def push_distances(board: SokobanBoard) -> dict[int, int]:
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


def solution_length(board: SokobanBoard, most: int | None = None) -> int | None:
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
                _, to = board.move(state, direction)
                if to in seen:
                    continue
                seen.add(to)
                if to.boxes != state.boxes:
                    if board.is_solved(to.boxes):
                        return moves
                    needed = pushes_needed(pushes, to.boxes)
                    if needed is None or (most is not None and moves + needed > most):
                        continue
                reached.append(to)
        edge = reached
    return None


class NeedsMoreMoves(ValueError):
    """Raised for a board that may be solved, but not in so few moves."""


def require_solvable(board: SokobanBoard, max_steps: int) -> None:
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
