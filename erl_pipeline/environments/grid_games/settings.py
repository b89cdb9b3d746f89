"""The settings that all grid games have."""

from __future__ import annotations

from typing import Literal, TypeVar

from pydantic import Field, field_validator, model_validator

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.prompts import check_template
from erl_pipeline.environments.grid_games.boards import Twins

INSTRUCTIONS = (
    "You act in a world that is shown as a grid of symbols. Its rules and the meaning of the symbols are not "
    "told; find out what leads to success. You may think first; the last square brackets count. The possible "
    "actions are: {{ actions | join(', ') }}."
)


class GridSettings(PluginSettings):
    """Boards, and what a policy is told of them."""

    task_file: str | None = None
    """Training boards: JSON lines `{"task_id", "board": [rows], "max_steps"}`; `null`: generated."""
    held_out_file: str | None = None
    """Held-out boards, in a file of the same form; `null`: generated."""
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
    rows: tuple[int, int]
    """Least and most rows of a generated board."""
    columns: tuple[int, int] | None = None
    """Least and most columns of a generated board; `null` makes square boards."""
    max_steps: int = Field(ge=1)
    """Moves in one attempt."""
    action_mode: Literal["step", "plan"] = "step"
    """`step`: one action a turn, with an observation after each. `plan`: all actions in one turn."""
    format: str = "compact"
    """How a policy is told of an attempt."""
    actions: str = "hidden_world"
    """Where the meaning of an action word comes from."""
    action_words: tuple[str, str, str, str]
    """The neutral words."""
    world_seed: int | None = Field(default=None, ge=0)
    """Chooses the permutation of `hidden_world`; `null` takes the run's seed."""
    symbols: tuple[str, ...]
    """Characters of the cells."""
    permute_symbols: bool = False
    """Another permutation of the symbols for each task."""
    instructions: str = INSTRUCTIONS
    """What a language model is told first, as a Jinja template. Variables: actions, the action words in
    alphabetical order. `format: prose` says with each observation how to answer."""

    @property
    def column_range(self) -> tuple[int, int]:
        """Least and most columns; square boards have those of `rows`."""
        return self.columns or self.rows

    @property
    def frame(self) -> tuple[int, int]:
        """Rows and columns that the compact form shows."""
        return self.rows[1], self.column_range[1]

    @property
    def moving(self) -> int:
        """How many things move on a board: in the compact form each has a word that says where it is."""
        return 1

    def require_ranges(self, **smallest: int) -> None:
        """Raise `ValueError` unless these settings are [least, most], from a smallest value on, or null."""
        for key, least in smallest.items():
            value = getattr(self, key)
            if value is not None and not least <= value[0] <= value[1]:
                raise ValueError(
                    f"{key}: {list(value)}: allowed is [least, most] with {least} <= least <= most"
                )

    @field_validator("instructions")
    @classmethod
    def _instructions_can_be_rendered(cls, template: str) -> str:
        return check_template("instructions", template, {"actions": ["a", "b"]})

    @model_validator(mode="after")
    def _distinct_words(self) -> GridSettings:
        for key, words in (("action_words", self.action_words), ("symbols", self.symbols)):
            number = {4: "four", 7: "seven"}.get(len(words), str(len(words)))
            if len(set(words)) != len(words) or any(word.split() != [word] for word in words):
                raise ValueError(f"{key}: {list(words)}: allowed are {number} different words without spaces")
            if key == "symbols" and any(len(symbol) != 1 for symbol in words):
                raise ValueError(f"symbols: {list(words)}: allowed are {number} single characters")
        if any(word != word.lower() for word in self.action_words):
            raise ValueError(f"action_words: {list(self.action_words)}: allowed are words in lower case")
        return self


ConfigT = TypeVar("ConfigT", bound=GridSettings)
