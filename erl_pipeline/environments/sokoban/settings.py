"""Settings of Sokoban."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from erl_pipeline.environments.grid_games.boards import GridSettings

_MOST_COMPACT_BOXES = 2


class SokobanConfig(GridSettings):
    """Sokoban: reward 1 when all boxes are on goals, else 0. Its boards are those of the ERL paper
    (arXiv 2602.13949) by default: one box, walls at the border alone, 6x6 to 8x8, at most 8 moves."""

    type: Literal["sokoban"] = "sokoban"
    task_file: str | None = None
    """Training boards: JSON lines `{"task_id", "board": [rows], "max_steps"}`, or levels in the format of
    Boxoban where the name ends in `.txt`; `null`: generated."""
    rows: tuple[int, int] = (6, 8)
    """Least and most rows of a generated board, its border of walls included."""
    boxes: tuple[int, int] = (1, 1)
    """Least and most boxes of a generated board; it has as many goals."""
    inner_walls: tuple[int, int] = (0, 0)
    """Least and most walls of a generated board besides those of its border."""
    solution_length: tuple[int, int] = (1, 8)
    """Least and most moves of the shortest solution of a generated board."""
    max_steps: int = Field(default=8, ge=1)
    """Moves in one attempt. The `max_steps` of a JSON line wins for its task; Boxoban's levels have none."""
    at_deadlock: Literal["continue", "end"] = "continue"
    """`end`: an attempt is over once boxes are in a deadlock that feedback has a name for. `continue`: it
    goes on to the last step, as in the paper."""
    format: Literal["prose", "compact"] = "compact"
    """`prose` is for language models; `compact` is word-level and of fixed width, for the tiny policy."""
    actions: Literal["named", "hidden_world", "per_task"] = "hidden_world"
    """`named`: the words say what they do. `hidden_world`: one permutation of neutral words for the whole
    run, never told. `per_task`: another permutation for each task."""
    action_words: tuple[str, str, str, str] = ("p", "q", "r", "s")
    """The neutral words, for all `actions` but `named`."""
    symbols: tuple[str, str, str, str, str, str, str] = ("A", "a", "B", "b", "C", "D", "E")
    """Characters for player, player on a goal, box, box on a goal, goal, floor and wall; they should not give
    the meaning away. The default is the paper's."""

    @property
    def frame(self) -> tuple[int, int]:
        """Rows and columns within the border of the largest board."""
        return self.rows[1] - 2, self.column_range[1] - 2

    @property
    def moving(self) -> int:
        """The player and the boxes, of which format: compact has one number."""
        return 1 + self.boxes[1]

    @model_validator(mode="after")
    def _possible_ranges(self) -> SokobanConfig:
        self.require_ranges(rows=3, columns=3, boxes=1, inner_walls=0, solution_length=1)
        room = (self.rows[0] - 2) * (self.column_range[0] - 2)
        needed = 2 * self.boxes[1] + 1 + self.inner_walls[1]
        if needed > room:
            raise ValueError(
                f"boxes: {list(self.boxes)} and inner_walls: {list(self.inner_walls)}: with goals and player "
                f"they need {needed} cells, but the smallest board has {room} within its border"
            )
        if self.solution_length[1] > self.max_steps:
            raise ValueError(
                f"solution_length: {list(self.solution_length)}: allowed is at most {self.max_steps}, since "
                f"longer solutions cannot be carried out with max_steps: {self.max_steps}"
            )
        return self

    @model_validator(mode="after")
    def _compact_is_fixed(self) -> SokobanConfig:
        if self.format != "compact":
            return self
        if self.actions == "named":
            raise ValueError(
                "actions: named has no compact form; allowed are hidden_world and per_task, or format: prose"
            )
        if self.boxes[0] != self.boxes[1] or self.boxes[1] > _MOST_COMPACT_BOXES:
            raise ValueError(
                f"boxes: {list(self.boxes)}: format: compact needs one number of boxes, which is at most "
                f"{_MOST_COMPACT_BOXES}, such as [1, 1]; allowed for others is format: prose"
            )
        return self
