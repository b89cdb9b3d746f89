"""FrozenLake in few tokens, for language models that a warm start has taught the format.

The user message is the grid alone. An answer names the places of player and goal, then the directions of a
way between them, then the action word for each: `P21 G12: up right [ river apple ]`. Only the words in the
brackets are carried out; what comes before them is a short thought.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from erl_pipeline.config.templates import render
from erl_pipeline.environments.frozen_lake.board import Board
from erl_pipeline.environments.frozen_lake.grid import grid, read_bracketed
from erl_pipeline.environments.frozen_lake.steps import Action, Ending, Step
from erl_pipeline.environments.frozen_lake.world import Symbols, World
from erl_pipeline.environments.hidden_words.directions import DIRECTIONS, Direction


class ShortRendering:
    """The texts of one task. `instructions` is a template, see `FrozenLakeConfig`."""

    def __init__(self, board: Board, world: World, instructions: str) -> None:
        self._board = board
        self._world = world
        self._instructions = instructions

    @property
    def instructions(self) -> str:
        return render(self._instructions, {"actions": sorted(self._world.actions)})

    @property
    def _realm(self) -> list[str]:
        return [f"Realm: {self._world.realm}"] if self._world.realm else []

    def first_observation(self) -> str:
        """The grid, below the realm where there is one."""
        return "\n".join([*self._realm, self._grid(self._board.start)])

    def read_actions(self, text: str) -> list[Action]:
        """The words in the last brackets; empty when one of them is no action."""
        return read_bracketed(text, self._world.actions)

    def observation(self, steps: Sequence[Step]) -> str:
        """What the last step did, and the grid."""
        return f"{self._said(steps[-1])}\n{self._grid(steps[-1].cell)}"

    def trace(self, steps: Sequence[Step]) -> str:
        """A line for each step: the word and the direction that it moved in."""
        return "\n".join([*self._realm, *map(self._said, steps)])

    def feedback(self, steps: Sequence[Step], ending: Ending) -> str:
        """How the attempt ended, in the symbols of the grid."""
        symbols = self._world.symbols
        return {
            "goal": f"Success: ended on {symbols.goal}.",
            "fell": f"Failed: ended on {symbols.hole}.",
            "steps_used": "Failed: no steps left.",
            "plan_ended": f"Failed: the plan ended before {symbols.goal}.",
        }[ending]

    def _said(self, step: Step) -> str:
        if step.action is None:
            return "no valid action"
        word, symbols = step.action.word, self._world.symbols
        if step.outcome == "bump":
            return f"{word}: no effect"
        into = {"fell": f" into {symbols.hole}", "goal": f" into {symbols.goal}"}.get(step.outcome, "")
        return f"{word}: {self._world.actions[word]}{into}"

    def _grid(self, player: int) -> str:
        return grid(self._board, self._world.symbols, player)


def short_answer(
    board: Board, symbols: Symbols, way: Sequence[Direction], words: Mapping[Direction, str]
) -> str:
    """A whole plan. `way`: the directions that are aimed for; `words`: the word believed to move in each.

    A place is its row and column, from 1.
    """
    player, goal = _place(board, board.start), _place(board, board.goal)
    said = " ".join(words[direction] for direction in way)
    return f"{symbols.player}{player} {symbols.goal}{goal}: {' '.join(way)} [ {said} ]"


def short_reflection(known: Mapping[Direction, str]) -> str:
    """What is known of the action words, such as `up: river, left: stone`."""
    return ", ".join(f"{direction}: {known[direction]}" for direction in DIRECTIONS if direction in known)


def aimed_way(text: str) -> list[Direction]:
    """The directions that an answer names before its brackets; empty where a word there is no direction."""
    named = text.partition(":")[2].partition("[")[0].split()
    way = [direction for word in named for direction in DIRECTIONS if word == direction]
    return way if len(way) == len(named) else []


def _place(board: Board, cell: int) -> str:
    row, column = divmod(cell, board.width)
    return f"{row + 1}{column + 1}"
