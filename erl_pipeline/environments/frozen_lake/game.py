"""The rules of FrozenLake, as in `gymnasium.envs.toy_text.frozen_lake` without slipping, and the texts about
attempts. No rule and no meaning of a symbol is explained."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.grid_games import game as grid
from erl_pipeline.environments.grid_games.boards import DIRECTIONS, Direction, GridBoard, require_letters
from erl_pipeline.environments.grid_games.hidden_words import World, stored_world
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.pictures import Cell, Picture

LETTERS = {"S": "start", "F": "frozen", "H": "hole", "G": "goal"}


class FrozenLakeBoard(GridBoard[int]):
    """Rows of the letters S, F, H, G. The state is the player's cell."""

    @cached_property
    def start(self) -> int:
        return self.letters.index("S")

    @cached_property
    def goal(self) -> int:
        return self.letters.index("G")

    def neighbour(self, cell: int, direction: Direction) -> int:
        """The cell that a move leads to; the same cell at the edge."""
        beside = self.beside(cell, direction)
        return cell if beside is None else beside

    def move(self, cell: int, direction: Direction) -> tuple[str, int]:
        """The direction, or `bump` (edge of the board), `fell` (into a hole) or `goal`; and the cell."""
        reached = self.neighbour(cell, direction)
        if reached == cell:
            return "bump", cell
        return {"H": "fell", "G": "goal"}.get(self.letters[reached], direction), reached

    def is_over(self, cell: int) -> bool:
        return self.letters[cell] in "GH"

    @cached_property
    def moves_to_goal(self) -> tuple[int | None, ...]:
        """For each cell the fewest moves from it to the goal without a hole; None where there is no way."""
        moves: list[int | None] = [None] * len(self.letters)
        moves[self.goal] = 0
        queue = deque([self.goal])
        while queue:
            cell = queue.popleft()
            for direction in DIRECTIONS:
                neighbour = self.neighbour(cell, direction)
                if moves[neighbour] is None and self.letters[neighbour] != "H":
                    moves[neighbour] = (moves[cell] or 0) + 1
                    queue.append(neighbour)
        return tuple(moves)

    def best_directions(self, cell: int) -> list[Direction]:
        """The directions that shorten the way to the goal; empty where there is no way."""
        here = self.moves_to_goal[cell]
        if here is None:
            return []
        return [d for d in DIRECTIONS if self.moves_to_goal[self.neighbour(cell, d)] == here - 1]


def parse_board(rows: Sequence[str]) -> FrozenLakeBoard:
    """The board of these rows; raises `ValueError` saying what is wrong with them."""
    require_letters(rows, LETTERS, "S, F, H and G")
    letters = "".join(rows)
    for letter in "SG":
        if letters.count(letter) != 1:
            raise ValueError(
                f"the board has {letters.count(letter)} cells {letter} ({LETTERS[letter]}), not one"
            )
    board = FrozenLakeBoard(tuple(rows))
    if board.moves_to_goal[board.start] is None:
        raise ValueError("the goal cannot be reached from the start")
    return board


@dataclass(frozen=True)
class FrozenLakeSymbols:
    """The characters a board is shown with."""

    player: str
    frozen: str
    hole: str
    goal: str

    def of_cell(self, board: FrozenLakeBoard, player: int, cell: int) -> str:
        if cell == player:
            return self.player
        return {"H": self.hole, "G": self.goal}.get(board.letters[cell], self.frozen)


FrozenLakeWorld = World[FrozenLakeSymbols]


class FrozenLakeProse(grid.ProseRendering[FrozenLakeBoard, FrozenLakeSymbols, int]):
    """FrozenLake in sentences, for language models."""

    effects: Mapping[str, str] = {
        "bump": "the action was valid but had no effect",
        "bad": "the answer held no valid action, so nothing was done",
        "fell": "the attempt ended here without success",
        "goal": "the attempt ended here with success",
    }

    def feedback(self, steps: Sequence[grid.Step[int]], ending: str) -> str:
        outcome = {
            "goal": "The attempt succeeded: the player reached the goal.",
            "fell": "The attempt failed: the player fell into a hole.",
            "steps_used": f"The attempt failed: all {self._max_steps} steps were used up before the goal.",
            "plan_ended": "The attempt failed: the plan ended before the goal was reached.",
        }[ending]
        bumps = sum(step.outcome == "bump" for step in steps)
        invalid = sum(step.outcome == "bad" for step in steps)
        counts = f"Steps used: {len(steps)}. Actions without effect: {bumps}. Invalid answers: {invalid}."
        return f"{outcome} {counts}"


class ShortRendering(grid.Rendering[FrozenLakeBoard, FrozenLakeSymbols, int]):
    """FrozenLake in few tokens, for language models that a warm start has taught the format.

    The user message is the grid alone. An answer names the places of player and goal, then the directions of
    a way between them, then the action word for each: `P21 G12: up right [ river apple ]`. Only the words in
    the brackets are carried out; what comes before them is a short thought.
    """

    def first_observation(self) -> str:
        """The grid, below the realm where there is one."""
        return "\n".join([*self._realm, self._grid(self._board.start)])

    def observation(self, steps: Sequence[grid.Step[int]]) -> str:
        """What the last step did, and the grid."""
        return f"{self._said(steps[-1])}\n{self._grid(steps[-1].state)}"

    def trace(self, steps: Sequence[grid.Step[int]]) -> str:
        """A line for each step: the word and the direction that it moved in."""
        return "\n".join([*self._realm, *map(self._said, steps)])

    def feedback(self, steps: Sequence[grid.Step[int]], ending: str) -> str:
        """How the attempt ended, in the symbols of the grid."""
        symbols = self._world.symbols
        return {
            "goal": f"Success: ended on {symbols.goal}.",
            "fell": f"Failed: ended on {symbols.hole}.",
            "steps_used": "Failed: no steps left.",
            "plan_ended": f"Failed: the plan ended before {symbols.goal}.",
        }[ending]

    def _said(self, step: grid.Step[int]) -> str:
        if step.action is None:
            return "no valid action"
        word, symbols = step.action.word, self._world.symbols
        if step.outcome == "bump":
            return f"{word}: no effect"
        into = {"fell": f" into {symbols.hole}", "goal": f" into {symbols.goal}"}.get(step.outcome, "")
        return f"{word}: {self._world.actions[word]}{into}"


def short_answer(
    board: FrozenLakeBoard,
    symbols: FrozenLakeSymbols,
    way: Sequence[Direction],
    words: Mapping[Direction, str],
) -> str:
    """A whole plan. `way`: the directions that are aimed for; `words`: the word believed to move in each.

    A place is its row and column, from 1.
    """
    player, goal = _place(board, board.start), _place(board, board.goal)
    said = " ".join(words[direction] for direction in way)
    return f"{symbols.player}{player} {symbols.goal}{goal}: {' '.join(way)} [ {said} ]"


def _place(board: FrozenLakeBoard, cell: int) -> str:
    row, column = divmod(cell, board.width)
    return f"{row + 1}{column + 1}"


class FrozenLakeCompact(grid.CompactRendering[FrozenLakeBoard, FrozenLakeSymbols, int]):
    """FrozenLake in words of one token each; cells outside a board are padding."""

    def first_observation(self) -> str:
        """The realm, if any, and the symbols of all places, row by row, the player's on the start."""
        height, width = self._frame
        shown = [grid.PADDING] * (height * width)
        for cell in range(len(self._board.letters)):
            symbol = self._world.symbols.of_cell(self._board, self._board.start, cell)
            shown[self._place(cell)] = symbol
        return " ".join([self._world.realm, *shown] if self._world.realm else shown)

    def feedback(self, steps: Sequence[grid.Step[int]], ending: str) -> str:
        """How the attempt ended, in one word; the counts are in the trace."""
        return ending if ending in ("goal", "fell") else "lost"

    def places(self, state: int) -> list[str]:
        return [grid.cell_word(self._place(state))]

    def _place(self, cell: int) -> int:
        """The place of a board's cell in the frame."""
        row, column = divmod(cell, self._board.width)
        return row * self._frame[1] + column


class FrozenLake(grid.GridGame[FrozenLakeBoard, int]):
    """An attempt, which ends at the goal, in a hole, or after the last step."""

    success = "goal"

    def _ending_of(self, step: grid.Step[int]) -> str | None:
        return step.outcome if step.outcome in ("goal", "fell") else None


def make_game(
    config: FrozenLakeConfig, board: FrozenLakeBoard, world: FrozenLakeWorld, max_steps: int
) -> FrozenLake:
    rendering: grid.Rendering[FrozenLakeBoard, Any, int]
    if config.format == "compact":
        rendering = FrozenLakeCompact(board, world, config.max_steps, config.frame)
    else:
        kind = ShortRendering if config.format == "short" else FrozenLakeProse
        rendering = kind(board, world, max_steps, config.action_mode, config.instructions)
    return FrozenLake(board, world, max_steps, rendering, config.action_mode)


def game_of(config: FrozenLakeConfig, task: Task) -> FrozenLake:
    board = FrozenLakeBoard(tuple(task.payload["board"]))
    return make_game(config, board, stored_world(task.payload, FrozenLakeSymbols), task.payload["max_steps"])


def open_frozen_lake(config: FrozenLakeConfig, task: Task) -> grid.GridEnvironment:
    return grid.GridEnvironment(game_of(config, task))


_CELLS: Mapping[str, Cell] = {"S": "start", "F": "floor", "H": "hole", "G": "goal"}

_ENDS = {"fell": "fell into a hole", "goal": "reached the goal"}


def attempt_picture(config: FrozenLakeConfig, task: Task, turns: Sequence[str]) -> Picture:
    """The board, and the way of an attempt, found by replaying what the policy said in its turns."""
    game = grid.replayed(game_of(config, task), turns)
    board, outcomes = game.board, [step.outcome for step in game.steps]
    notes = [f"{outcomes.count('bump')} × against the edge"] if "bump" in outcomes else []
    if "bad" in outcomes:
        notes.append(f"{outcomes.count('bad')} × no valid action")
    notes += [_ENDS[outcome] for outcome in outcomes[-1:] if outcome in _ENDS]
    path = [divmod(cell, board.width) for cell in (board.start, *(step.state for step in game.steps))]
    return Picture([[_CELLS[letter] for letter in row] for row in board.rows], path, notes=notes)
