"""Sokoban's boards: how they are drawn, and files of levels in the format of Boxoban."""

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from erl_pipeline.environments.grid_games.boards import DIRECTIONS, Direction
from erl_pipeline.environments.grid_games.hidden_words import turns_of
from erl_pipeline.environments.grid_games.tasks import BoardTask, Entry, GridTasks
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.sokoban import board as rules
from erl_pipeline.environments.sokoban.game import SokobanSymbols
from erl_pipeline.environments.sokoban.settings import SokobanConfig
from erl_pipeline.environments.tasks import file_text
from storage.errors import InputError


@dataclass(frozen=True)
class _Level:
    """A level as it is in a file; `line` is the line of its name."""

    name: str
    line: int
    rows: list[str]


class SokobanTasks(GridTasks[SokobanConfig, rules.SokobanBoard]):
    """The tasks of Sokoban. A file whose name ends in `.txt` holds levels."""

    name = "sokoban"
    board = rules.SokobanBoard
    symbols = SokobanSymbols
    letters = "# @ + $ * . and space"
    alphabet = rules.LETTERS
    tries = 20_000
    looser = "boxes, inner walls or solution lengths"

    def parse(self, rows: Sequence[str], max_steps: int) -> rules.SokobanBoard:
        board = rules.parse_board(rows)
        rules.require_solvable(board, max_steps)
        return board

    def draw(self, stream: random.Random, config: SokobanConfig) -> rules.SokobanBoard:
        """A border, and within it walls, boxes, goals and the player, each on a cell of its own."""
        height = stream.randint(*config.rows)
        width = height if config.columns is None else stream.randint(*config.columns)
        boxes = stream.randint(*config.boxes)
        walls = stream.randint(*config.inner_walls)
        inside = [row * width + column for row in range(1, height - 1) for column in range(1, width - 1)]
        letters = ["#"] * (height * width)
        for cell in inside:
            letters[cell] = " "
        things = "@" + "$" * boxes + "." * boxes + "#" * walls
        for cell, letter in zip(stream.sample(inside, len(things)), things, strict=True):
            letters[cell] = letter
        return rules.SokobanBoard(
            tuple("".join(letters[row * width : (row + 1) * width]) for row in range(height))
        )

    def is_wanted(self, board: rules.SokobanBoard, config: SokobanConfig) -> bool:
        """Whether the length of the shortest solution is one that `solution_length` allows."""
        if rules.deadlocks(board, board.start.boxes):
            return False
        shortest, longest = config.solution_length
        moves = rules.solution_length(board, longest)
        return moves is not None and moves >= shortest

    def check_compact(self, board: rules.SokobanBoard, config: SokobanConfig) -> None:
        if not board.has_border:
            raise ValueError("format: compact needs a board with walls all around")
        if len(board.start.boxes) != config.boxes[0]:
            raise ValueError(
                f"the board has {len(board.start.boxes)} boxes, but format: compact with "
                f"environment.boxes: {list(config.boxes)} shows {config.boxes[0]}"
            )

    def entries(self, path: Path, max_steps: int) -> Iterator[Entry[rules.SokobanBoard]]:
        """JSON lines, or levels: a line `; NAME`, the rows, a blank line. A level has no limit of its own, so
        it is no task where it needs more than `max_steps` moves."""
        if path.suffix != ".txt":
            yield from super().entries(path, max_steps)
            return
        for level in _levels(path):
            task_id = f"{path.stem}-{level.name}"
            try:
                if not level.name:
                    raise ValueError("the level has no name; needed: a line such as '; 0'")
                task = BoardTask(task_id, self.parse(level.rows, max_steps), max_steps)
                yield level.line, task_id, task
            except rules.NeedsMoreMoves:
                yield level.line, task_id, None
            except ValueError as error:
                raise InputError(
                    f"task file {path}, line {level.line}, level {level.name!r}: {error}"
                ) from error


TASKS = SokobanTasks()


def _levels(path: Path) -> Iterator[_Level]:
    level: _Level | None = None
    lines = file_text(path, "task file").split("\n")
    for number, line in [*enumerate(lines, start=1), (0, "")]:
        if line.startswith(";"):
            if level is not None:
                yield level
            level = _Level(line[1:].strip(), number, [])
        elif line.strip():
            if level is None:
                raise InputError(
                    f"task file {path}, line {number}: a row before the first level; each begins with a line "
                    "such as '; 0'"
                )
            level.rows.append(line.rstrip("\r"))
        elif level is not None and (level.rows or number == 0):
            yield level
            level = None


MOST_STATES = 50_000
"""The most states that are searched, in some seconds. A board that needs more has no gold answer."""

_PUSH_WEIGHT = 8
"""How many moves each push that is still needed counts for. With 1 the search finds a shortest way, but four
boxes on ten by ten cells then take a hundred times as many states."""


def gold_answer(config: SokobanConfig, task: Task) -> list[str] | None:
    """The turns of a way to the solution, one turn in mode `plan`; None where no way was found within the
    moves that the task allows."""
    way = solution(rules.SokobanBoard(tuple(task.payload["board"])), task.payload["max_steps"])
    if way is None:
        return None
    return turns_of(way, config, task)


def solution(board: rules.SokobanBoard, most: int, most_states: int = MOST_STATES) -> list[Direction] | None:
    """The directions of at most `most` moves that bring all boxes onto goals, not always the fewest; None
    where there are none, or none within `most_states` states. Always the same ones for the same board.

    Weighted A*: the next state is the one with the smallest sum of moves made and weighted pushes needed.
    """
    pushes = rules.push_distances(board)
    came: dict[rules.State, tuple[rules.State, Direction]] = {}
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
            needed = rules.pushes_needed(pushes, to.boxes)
            if (
                needed is None
                or made + needed > most
                or (to.boxes != state.boxes and rules.deadlocks(board, to.boxes))
            ):
                continue
            moves[to] = made
            came[to] = state, direction
            heapq.heappush(waiting, (made + _PUSH_WEIGHT * needed, len(came), to))
    return None


def _way(came: dict[rules.State, tuple[rules.State, Direction]], state: rules.State) -> list[Direction]:
    """The directions from the start to a state."""
    way: list[Direction] = []
    while state in came:
        state, direction = came[state]
        way.append(direction)
    return way[::-1]
