"""Boards from a seed. No board can be in two splits: the hash of a board, or of what it shares
with its rotations and mirror images, decides its split."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from typing import Literal

from erl_pipeline.environments.sokoban.board import Board
from erl_pipeline.environments.sokoban.deadlocks import deadlocks
from erl_pipeline.environments.sokoban.settings import SokobanConfig
from erl_pipeline.environments.sokoban.solving import solution_length
from storage.errors import ConfigError

Split = Literal["training", "held_out", "test"]

_SHARES = 8
_SMALL_SPLITS: dict[int, Split] = {0: "held_out", 1: "test"}
"""One board in eight is held out, another one in eight for the test; the others are for training."""
_TRIES_WITHOUT_A_NEW_BOARD = 20_000


def split_of(board: Board, config: SokobanConfig) -> Split:
    """The split of a generated board, whatever the seed it came from.

    Without `test_boards` the boards of the test split are training boards; they are never held-out boards.
    """
    digest = hashlib.sha256("/".join(kept_apart(board, config)).encode()).digest()
    split = _SMALL_SPLITS.get(digest[0] % _SHARES, "training")
    return "training" if split == "test" and config.test_boards is None else split


def kept_apart(board: Board, config: SokobanConfig) -> tuple[str, ...]:
    """What no board of another split may have in common with this one: its rows, or its shape."""
    return board.shape if config.twins == "one_split" else board.rows


def generate_boards(
    config: SokobanConfig, split: Split, count: int, excluded: Iterable[Board] = ()
) -> list[Board]:
    """`count` different boards of a split, in an order that depends on `config.board_seed` alone.

    None of them is one of `excluded` or, where twins are kept apart, a rotation or mirror image of one. A
    smaller `count` gives the beginning of the same list. Raises `ConfigError` where the settings
    allow too few boards.
    """
    stream = random.Random(f"sokoban/{split}/{config.board_seed}")
    never = {kept_apart(board, config) for board in excluded}
    boards: dict[Board, None] = {}
    tries = 0
    while len(boards) < count:
        if tries == _TRIES_WITHOUT_A_NEW_BOARD:
            raise ConfigError(
                f"environment: only {len(boards)} different {split} boards were found, {count} are asked "
                "for; allow more sizes, boxes, inner walls or solution lengths, or ask for fewer boards"
                + (", or set twins: any_split" if config.twins == "one_split" else "")
            )
        tries += 1
        board = random_board(stream, config)
        # The search for a solution takes longest, so it comes last.
        if board in boards or kept_apart(board, config) in never or split_of(board, config) != split:
            continue
        if _is_wanted(board, config):
            boards[board] = None
            tries = 0
    return list(boards)


def random_board(stream: random.Random, config: SokobanConfig) -> Board:
    """One draw: a border, and within it walls, boxes, goals and the player, each on a cell of its own."""
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
    return Board(tuple("".join(letters[row * width : (row + 1) * width]) for row in range(height)))


def _is_wanted(board: Board, config: SokobanConfig) -> bool:
    """Whether the length of the shortest solution is one that `solution_length` allows."""
    if deadlocks(board, board.start.boxes):
        return False
    shortest, longest = config.solution_length
    moves = solution_length(board, longest)
    return moves is not None and moves >= shortest
