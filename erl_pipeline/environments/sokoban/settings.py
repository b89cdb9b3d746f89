"""Settings of Sokoban."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.templates import check_template
from erl_pipeline.environments.board_twins import Twins

_INSTRUCTIONS = (
    "You act in a world that is shown as a grid of symbols. Its rules and the meaning of the symbols are not "
    "told; find out what leads to success. You may think first; the last square brackets count. The possible "
    "actions are: {{ actions | join(', ') }}."
)
_MOST_COMPACT_BOXES = 2


class SokobanConfig(PluginSettings):
    """Sokoban: reward 1 when all boxes are on goals, else 0. Its boards are those of the ERL paper
    (arXiv 2602.13949) by default: one box, walls at the border alone, 6x6 to 8x8, at most 8 moves."""

    type: Literal["sokoban"] = "sokoban"
    task_file: str | None = None
    """Training boards: JSON lines `{"task_id", "board": [rows], "max_steps"}`, or levels in the format of
    Boxoban where the name ends in `.txt`; `null`: generated."""
    held_out_file: str | None = None
    """Held-out boards, in a file of the same forms; `null`: generated."""
    board_seed: int = Field(default=0, ge=0)
    """Generated boards derive from it alone, so that runs with different seeds share their boards."""
    training_boards: int = Field(default=4096, ge=1, le=100_000)
    """Generated training boards, all different, none of them a held-out board. The cold start of a tiny
    policy shows them too."""
    test_boards: int | None = Field(default=None, ge=1, le=100_000)
    """Generated boards of a third split. Only `compare` uses it, for its report; the boards are then not
    trained on. `null`: there is no such split."""
    twins: Twins = "one_split"
    """`one_split`: a board's rotations and mirror images are in its split, so no training board is a held-out
    or a test board turned around; a training file's boards that are, are left out. `any_split`: only equal
    boards are kept apart."""
    rows: tuple[int, int] = (6, 8)
    """Least and most rows of a generated board, its border of walls included."""
    columns: tuple[int, int] | None = None
    """Least and most columns of a generated board; `null` makes square boards."""
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
    action_mode: Literal["step", "plan"] = "step"
    """`step`: one action a turn, with an observation after each. `plan`: all actions in one turn."""
    format: Literal["prose", "compact"] = "compact"
    """`prose` is for language models; `compact` is word-level and of fixed width, for the tiny policy."""
    actions: Literal["named", "hidden_world", "per_task"] = "hidden_world"
    """`named`: the words say what they do. `hidden_world`: one permutation of neutral words for the whole
    run, never told. `per_task`: another permutation for each task."""
    action_words: tuple[str, str, str, str] = ("p", "q", "r", "s")
    """The neutral words, for all `actions` but `named`."""
    world_seed: int | None = Field(default=None, ge=0)
    """Chooses the permutation of `hidden_world`; `null` takes the run's seed."""
    symbols: tuple[str, str, str, str, str, str, str] = ("A", "a", "B", "b", "C", "D", "E")
    """Characters for player, player on a goal, box, box on a goal, goal, floor and wall; they should not give
    the meaning away. The default is the paper's."""
    permute_symbols: bool = False
    """Another permutation of the symbols for each task."""
    instructions: str = _INSTRUCTIONS
    """What a language model is told first (`format: prose`), as a Jinja template. Variables: actions, the
    action words in alphabetical order. Each observation says how to answer."""

    @property
    def column_range(self) -> tuple[int, int]:
        """Least and most columns; square boards have those of `rows`."""
        return self.columns or self.rows

    @field_validator("instructions")
    @classmethod
    def _instructions_can_be_rendered(cls, template: str) -> str:
        return check_template("instructions", template, {"actions": ["a", "b"]})

    @model_validator(mode="after")
    def _possible_ranges(self) -> SokobanConfig:
        for key, value, least in (
            ("rows", self.rows, 3),
            ("columns", self.columns, 3),
            ("boxes", self.boxes, 1),
            ("inner_walls", self.inner_walls, 0),
            ("solution_length", self.solution_length, 1),
        ):
            if value is not None and not least <= value[0] <= value[1]:
                raise ValueError(
                    f"{key}: {list(value)}: allowed is [least, most] with {least} <= least <= most"
                )
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
    def _distinct_words(self) -> SokobanConfig:
        for key, words in (("action_words", self.action_words), ("symbols", self.symbols)):
            if len(set(words)) != len(words) or any(
                word != "".join(word.split()) or not word for word in words
            ):
                raise ValueError(
                    f"{key}: {list(words)}: allowed are {len(words)} different words without spaces"
                )
        if any(len(symbol) != 1 for symbol in self.symbols):
            raise ValueError(f"symbols: {list(self.symbols)}: allowed are seven single characters")
        if any(word != word.lower() for word in self.action_words):
            raise ValueError(f"action_words: {list(self.action_words)}: allowed are words in lower case")
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
