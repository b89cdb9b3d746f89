"""What both formats for language models share: the board as a grid, and actions in brackets."""

from __future__ import annotations

import re
from collections.abc import Container

from erl_pipeline.environments.frozen_lake.board import Board
from erl_pipeline.environments.frozen_lake.steps import Action
from erl_pipeline.environments.frozen_lake.world import Symbols

_BRACKETED = re.compile(r"```(?:[a-z]+\n)?(.*?)```|\[([^\[\]]*)\]|`([^`]+)`", re.DOTALL)


def grid(board: Board, symbols: Symbols, player: int) -> str:
    """The board row by row, with the player on a cell."""
    by_letter = {"S": symbols.frozen, "F": symbols.frozen, "H": symbols.hole, "G": symbols.goal}
    cells = [by_letter[letter] for letter in board.letters]
    cells[player] = symbols.player
    width = board.width
    return "\n".join(" ".join(cells[row * width : (row + 1) * width]) for row in range(board.height))


def read_bracketed(text: str, words: Container[str]) -> list[Action]:
    """The actions in the last brackets or code fence; empty when one of them is not among `words`."""
    found = list(_BRACKETED.finditer(text))
    if not found:
        return []
    inside = next(group for group in found[-1].groups() if group is not None)
    said = [word.lower() for word in re.split(r"[\s,;]+", inside) if word]
    if any(word not in words for word in said):
        return []
    return [Action(word) for word in said]
