"""Boards from a seed. No board can be in two splits: the hash of a board, or of what it shares
with its rotations and mirror images, decides its split."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from typing import Literal

from erl_pipeline.environments.frozen_lake.board import Board
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from storage.errors import ConfigError

Split = Literal["training", "held_out", "test"]

_SHARES = 8
_SMALL_SPLITS: dict[int, Split] = {0: "held_out", 1: "test"}
"""One board in eight is held out, another one in eight for the test; the others are for training."""
_TRIES_WITHOUT_A_NEW_BOARD = 100_000


def split_of(board: Board, config: FrozenLakeConfig) -> Split:
    """The split of a generated board, whatever the seed it came from.

    Without `test_boards` the boards of the test split are training boards; they are never held-out boards.
    """
    digest = hashlib.sha256("/".join(kept_apart(board, config)).encode()).digest()
    split = _SMALL_SPLITS.get(digest[0] % _SHARES, "training")
    return "training" if split == "test" and config.test_boards is None else split


def kept_apart(board: Board, config: FrozenLakeConfig) -> tuple[str, ...]:
    """What no board of another split may have in common with this one: its rows, or its shape."""
    return board.shape if config.twins == "one_split" else board.rows


def generate_boards(
    config: FrozenLakeConfig, split: Split, count: int, excluded: Iterable[Board] = ()
) -> list[Board]:
    """`count` different boards of a split, in an order that depends on `config.board_seed` alone.

    None of them is one of `excluded` or, where twins are kept apart, a rotation or mirror image of one. A
    smaller `count` gives the beginning of the same list. Raises `ConfigError` where the settings
    allow too few boards.
    """
    stream = random.Random(f"frozen_lake/{split}/{config.board_seed}")
    never = {kept_apart(board, config) for board in excluded}
    boards: dict[Board, None] = {}
    tries = 0
    while len(boards) < count:
        if tries == _TRIES_WITHOUT_A_NEW_BOARD:
            raise ConfigError(
                f"environment: only {len(boards)} different {split} boards were found, {count} are asked "
                "for; allow more sizes, holes or path lengths, or ask for fewer boards"
                + (", or set twins: any_split" if config.twins == "one_split" else "")
            )
        tries += 1
        board = _random_board(stream, config)
        if board is None or board in boards or kept_apart(board, config) in never:
            continue
        if split_of(board, config) == split:
            boards[board] = None
            tries = 0
    return list(boards)


def _random_board(stream: random.Random, config: FrozenLakeConfig) -> Board | None:
    """One draw; None where the shortest path is shorter or longer than `path_length` allows."""
    height = stream.randint(*config.rows)
    width = height if config.columns is None else stream.randint(*config.columns)
    cells = list(range(height * width))
    stream.shuffle(cells)
    start, goal, *others = cells
    if config.holes is not None:
        holes = set(others[: stream.randint(*config.holes)])
    else:
        holes = {cell for cell in others if stream.random() < (config.hole_probability or 0.0)}
    letters = "".join(
        "S" if cell == start else "G" if cell == goal else "H" if cell in holes else "F"
        for cell in range(height * width)
    )
    board = Board(tuple(letters[row * width : (row + 1) * width] for row in range(height)))
    moves = board.moves_to_goal[start]
    shortest, longest = config.path_length
    return board if moves is not None and shortest <= moves <= longest else None
