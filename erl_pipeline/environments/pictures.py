"""What the user interface shows of attempts: a board and the way taken on it, or a search's documents."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Cell = Literal["floor", "start", "goal", "hole", "wall", "box", "box_on_goal", "mark"]
"""What is in a cell; `mark` is anything else, told apart by its label."""


@dataclass(frozen=True)
class Picture:
    """A board, and where an attempt went on it.

    `path` are the cells (row, column) in which the player was, the first one included; a move without effect
    repeats the cell. `notes` say what the board does not show, such as moves that had no effect.
    """

    cells: Sequence[Sequence[Cell]]
    path: Sequence[tuple[int, int]] = ()
    boxes: Sequence[tuple[int, int]] = ()
    """Where boxes are at the end, if the game has any."""
    notes: Sequence[str] = ()

    @property
    def height(self) -> int:
        """Rows of the board."""
        return len(self.cells)

    @property
    def width(self) -> int:
        """Columns of the board."""
        return max((len(row) for row in self.cells), default=0)


@dataclass(frozen=True)
class Document:
    """A document that a search found. `needed`: it is one that the task cannot be solved without, which the
    policy is not told."""

    title: str
    text: str
    needed: bool = False


@dataclass(frozen=True)
class FoundDocuments:
    """What a message of the environment shows: documents, the best first, and the text after them."""

    documents: Sequence[Document]
    rest: str = ""
