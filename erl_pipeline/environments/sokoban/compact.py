"""Sokoban in words of one token each, in fields of fixed width, for the tiny policy.

A turn of the policy is two words: the direction it aims for, and the action word that it believes moves
there. The aim is a thought of one word; without it the cold start does not learn to plan.

All boards of a run are shown in a frame of one size: the cells within the border of the largest board. A
smaller board is in the upper left corner, with walls beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, get_args

from erl_pipeline.environments.hidden_words.directions import DIRECTIONS, Direction
from erl_pipeline.environments.sokoban.board import Board, State
from erl_pipeline.environments.sokoban.deadlocks import deadlocks
from erl_pipeline.environments.sokoban.moves import Outcome
from erl_pipeline.environments.sokoban.settings import SokobanConfig
from erl_pipeline.environments.sokoban.steps import Action, Ending, Step
from erl_pipeline.environments.sokoban.world import World

START = "start"
OUTCOMES: tuple[str, ...] = (*(each for each in get_args(Outcome) if each not in DIRECTIONS), "bad")
"""The outcomes of steps other than the four directions."""
PADDING = "."
SOLVED, STUCK, LOST = ENDINGS = ("solved", "stuck", "lost")


def cell_word(cell: int) -> str:
    return f"c{cell}"


def frame_of(config: SokobanConfig) -> tuple[int, int]:
    """Rows and columns within the border of the largest board."""
    return config.rows[1] - 2, config.column_range[1] - 2


def step_words(boxes: int) -> int:
    """Words of a step in a trace: aim, action, outcome, the player's cell, the boxes' cells."""
    return 4 + boxes


class CompactRendering:
    """The texts of one task. `max_steps` and `frame` (rows, columns) are the widths of the run's prompts."""

    def __init__(self, board: Board, world: World, max_steps: int, frame: tuple[int, int]) -> None:
        self._board = board
        self._world = world
        self._max_steps = max_steps
        self._frame = frame

    instructions = ""

    def first_observation(self) -> str:
        """The symbols of all cells of the frame, row by row, then where player and boxes are."""
        symbols = [
            self._symbol(row, column)
            for row in range(1, self._frame[0] + 1)
            for column in range(1, self._frame[1] + 1)
        ]
        return " ".join([*symbols, START, *self._places(self._board.start)])

    def read_actions(self, text: str) -> list[Action]:
        """The actions of `aim word aim word ...`; empty when the text is anything else."""
        words = text.split()
        aims, actions = words[0::2], words[1::2]
        if len(words) % 2 or any(aim not in DIRECTIONS for aim in aims):
            return []
        if any(word not in self._world.actions for word in actions):
            return []
        return [Action(word, cast(Direction, aim)) for aim, word in zip(aims, actions, strict=True)]

    def observation(self, steps: Sequence[Step]) -> str:
        """What the last step did, and where player and boxes are."""
        return " ".join([steps[-1].outcome, *self._places(steps[-1].state)])

    def trace(self, steps: Sequence[Step]) -> str:
        """`aim action outcome player boxes` for each step, padded to the width of a whole attempt."""
        words: list[str] = []
        for step in steps:
            if step.action is None:
                words += [PADDING, PADDING]
            else:
                words += [step.action.intent or PADDING, step.action.word]
            words += [step.outcome, *self._places(step.state)]
        width = step_words(len(self._board.start.boxes)) * self._max_steps
        return " ".join(words + [PADDING] * (width - len(words)))

    def feedback(self, steps: Sequence[Step], ending: Ending) -> str:
        """How the attempt ended, in one word; the counts are in the trace."""
        if ending == "solved":
            return SOLVED
        return STUCK if deadlocks(self._board, steps[-1].state.boxes) else LOST

    def _symbol(self, row: int, column: int) -> str:
        if row >= self._board.height or column >= self._board.width:
            return self._world.symbols.wall
        cell = row * self._board.width + column
        return self._world.symbols.of_cell(self._board, self._board.start, cell)

    def _places(self, state: State) -> list[str]:
        return [self._cell_word(cell) for cell in (state.player, *state.boxes)]

    def _cell_word(self, cell: int) -> str:
        row, column = divmod(cell, self._board.width)
        return cell_word((row - 1) * self._frame[1] + column - 1)
