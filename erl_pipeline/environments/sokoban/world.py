"""What a policy is not told: which word moves where, and which symbol is what."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from erl_pipeline.environments.hidden_words.directions import DIRECTIONS, Direction
from erl_pipeline.environments.sokoban.board import Board, State
from erl_pipeline.environments.sokoban.settings import SokobanConfig


@dataclass(frozen=True)
class Symbols:
    """The characters a board is shown with."""

    player: str
    player_on_goal: str
    box: str
    box_on_goal: str
    goal: str
    floor: str
    wall: str

    def of_cell(self, board: Board, state: State, cell: int) -> str:
        """What is shown at a cell of a board."""
        on_goal = cell in board.goals
        if cell == state.player:
            return self.player_on_goal if on_goal else self.player
        if cell in state.boxes:
            return self.box_on_goal if on_goal else self.box
        if on_goal:
            return self.goal
        return self.wall if board.letters[cell] == "#" else self.floor


@dataclass(frozen=True)
class World:
    """`actions` maps each action word to the direction it moves in."""

    actions: Mapping[str, Direction]
    symbols: Symbols

    def word_for(self, direction: Direction) -> str:
        """The action word that moves in this direction."""
        return next(word for word, meaning in self.actions.items() if meaning == direction)


def world_of_task(config: SokobanConfig, seed: int, task_id: str) -> World:
    """The world of one task. `seed` is the run's; per-task permutations derive from it and the task's id."""
    words: Sequence[str]
    meanings: Sequence[Direction]
    if config.actions == "named":
        words, meanings = DIRECTIONS, DIRECTIONS
    elif config.actions == "per_task":
        words, meanings = (
            config.action_words,
            random.Random(f"actions/{seed}/{task_id}").sample(DIRECTIONS, 4),
        )
    else:
        words, meanings = (
            config.action_words,
            hidden_permutation(seed if config.world_seed is None else config.world_seed),
        )
    symbols = list(config.symbols)
    if config.permute_symbols:
        random.Random(f"symbols/{seed}/{task_id}").shuffle(symbols)
    return World(dict(zip(words, meanings, strict=True)), Symbols(*symbols))


def hidden_permutation(world_seed: int) -> tuple[Direction, ...]:
    """The directions of the four action words; any 24 seeds in a row give 24 different worlds."""
    return list(permutations(DIRECTIONS))[(5 + 7 * world_seed) % 24]
