"""The four directions that hidden action words move in."""

from __future__ import annotations

from typing import Literal, Protocol, get_args

Direction = Literal["up", "right", "down", "left"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)


class KnowsWords(Protocol):
    """A world that knows its action words."""

    def word_for(self, direction: Direction) -> str:
        """The action word that moves in this direction."""
        ...
