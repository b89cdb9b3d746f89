"""FrozenLake in words of one token each, in fields of fixed width, for the tiny policy.

Boards of several sizes are shown in a frame of the largest, at its top left, so that a place has the same
word and position on all of them; cells outside a board are padding.

A turn of the policy is two words: the direction it aims for, and the action word that it believes moves
there. The aim is a thought of one word; without it the cold start does not learn to plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from erl_pipeline.environments.frozen_lake.board import Board
from erl_pipeline.environments.frozen_lake.steps import Action, Ending, Outcome, Step
from erl_pipeline.environments.frozen_lake.world import World
from erl_pipeline.environments.hidden_words.directions import DIRECTIONS, Direction

OUTCOMES: tuple[Outcome, ...] = ("bump", "bad", "fell", "goal")  # besides the four directions
PADDING = "."
STEP_WORDS = 4  # aim, action, outcome, cell
_ENDING_WORDS: dict[Ending, str] = {
    "goal": "goal",
    "fell": "fell",
    "steps_used": "lost",
    "plan_ended": "lost",
}
ENDINGS: tuple[str, ...] = ("goal", "fell", "lost")


def cell_word(cell: int) -> str:
    return f"c{cell}"


class CompactRendering:
    """The texts of one task. `frame` is the rows and columns of the largest board."""

    def __init__(self, board: Board, world: World, max_steps: int, frame: tuple[int, int]) -> None:
        self._board = board
        self._world = world
        self._max_steps = max_steps
        self._frame = frame

    instructions = ""

    def first_observation(self) -> str:
        """The realm, if any, and the symbols of all places, row by row, the player's on the start."""
        symbols = self._world.symbols
        by_letter = {"S": symbols.player, "F": symbols.frozen, "H": symbols.hole, "G": symbols.goal}
        height, width = self._frame
        shown = [PADDING] * (height * width)
        for cell, letter in enumerate(self._board.letters):
            shown[self._place(cell)] = by_letter[letter]
        return " ".join([self._world.realm, *shown] if self._world.realm else shown)

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
        """What the last step did and where the player is."""
        return f"{steps[-1].outcome} {self._cell_word(steps[-1])}"

    def trace(self, steps: Sequence[Step]) -> str:
        """`aim action outcome cell` for each step, padded to the width of a whole attempt."""
        words: list[str] = []
        for step in steps:
            if step.action is None:
                words += [PADDING, PADDING]
            else:
                words += [step.action.intent or PADDING, step.action.word]
            words += [step.outcome, self._cell_word(step)]
        return " ".join(words + [PADDING] * (STEP_WORDS * self._max_steps - len(words)))

    def feedback(self, steps: Sequence[Step], ending: Ending) -> str:
        """How the attempt ended, in one word; the counts are in the trace."""
        return _ENDING_WORDS[ending]

    def _cell_word(self, step: Step) -> str:
        return cell_word(self._place(step.cell))

    def _place(self, cell: int) -> int:
        """The place of a board's cell in the frame."""
        row, column = divmod(cell, self._board.width)
        return row * self._frame[1] + column
