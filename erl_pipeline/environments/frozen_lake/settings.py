"""Settings of FrozenLake."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from erl_pipeline.config.base import Settings
from erl_pipeline.config.prompts import PromptTemplates
from erl_pipeline.environments.grid_games.boards import INSTRUCTIONS, GridSettings

PERMUTATIONS = 24
"""How many there are of four action words."""

MOST_PLACES = 9
"""Rows and columns of a board whose places `format: short` can name."""

_SHORT_INSTRUCTIONS = "Actions: {{ actions | join(' ') }}"


class RealmConfig(Settings):
    """Realms of `actions: realms`: how many are trained on, and how many are kept for streamed evaluation."""

    training: int = Field(default=16, ge=1)
    """Realms of the training tasks, and of the held-out boards that `evaluation.tasks` counts."""
    held_out: int = Field(default=8, ge=0)
    """Realms that no training task has; `evaluation.stream` plays in them."""

    @model_validator(mode="after")
    def _each_has_a_permutation(self) -> RealmConfig:
        if self.training + self.held_out > PERMUTATIONS:
            raise ValueError(
                f"training: {self.training} and held_out: {self.held_out}: allowed are {PERMUTATIONS} realms "
                "in all, since four action words have no more permutations"
            )
        return self


class ShortPrompts(PromptTemplates):
    """The prompts of `format: short`, as templates with the same variables as `method.prompts`."""

    second_attempt: str = "{{ instructions }}{% for note in notes %}\nNotes: {{ note }}{% endfor %}"
    """System message of an attempt that follows a reflection. Variables: instructions, observation, notes."""
    retry: str = (
        "{{ instructions }}{% for note in notes %}\nNotes: {{ note }}{% endfor %}\nTried:\n{{ trace }}"
    )
    """System message of an attempt that is told how the one before it failed. Variables: instructions,
    observation, trace, feedback, reward, notes."""
    reflection_system: str = "Which word moves where?"
    """System message that asks for a reflection. Variables: none."""
    reflection: str = "{{ instructions }}{% for note in memory %}\nNotes: {{ note }}{% endfor %}\n{{ trace }}"
    """User message that asks for a reflection. Variables: instructions, observation, trace, feedback, reward,
    memory."""


class FrozenLakeConfig(GridSettings):
    """FrozenLake without slipping, on gymnasium's rules: reward 1 at the goal, holes end the attempt."""

    type: Literal["frozen_lake"] = "frozen_lake"
    rows: tuple[int, int] = (4, 4)
    """Least and most rows of a generated board."""
    holes: tuple[int, int] | None = (1, 4)
    """Least and most holes of a generated board; `null` when `hole_probability` is set."""
    hole_probability: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Chance of each cell to be a hole, instead of a number of holes."""
    path_length: tuple[int, int] = (2, 6)
    """Least and most moves on the shortest way from start to goal of a generated board."""
    max_steps: int = Field(default=6, ge=1)
    """Moves in one attempt. A task file's own `max_steps` wins for its tasks."""
    format: Literal["prose", "short", "compact"] = "compact"
    """`prose` and `short` are for language models: `prose` explains itself, `short` takes a third of the
    tokens and has to be learned, as by `policy.warm_start`. `compact` is word-level and of fixed width, for
    the tiny policy; it shows boards of several sizes in a frame of the largest that `rows` and `columns`
    allow."""
    actions: Literal["named", "hidden_world", "per_task", "realms"] = "hidden_world"
    """`named`: the words say what they do. `hidden_world`: one permutation of neutral words for the whole
    run, never told. `per_task`: another permutation for each task. `realms`: each task is in a realm, and
    each realm has its own permutation; its name is shown before the board and is part of `task_type`."""
    realms: RealmConfig | None = None
    """How many realms there are; only with `actions: realms`, which sets `{training: 16, held_out: 8}`."""
    action_words: tuple[str, str, str, str] = ("a", "b", "c", "d")
    """The neutral words, for all `actions` but `named`."""
    world_seed: int | None = Field(default=None, ge=0)
    """Chooses the permutations of `hidden_world` and `realms`; `null` takes the run's seed."""
    symbols: tuple[str, str, str, str] = ("@", "#", "$", "&")
    """Characters for player, frozen cell, hole and goal; they should not give the meaning away."""
    instructions: str = INSTRUCTIONS
    """What a language model is told first, as a Jinja template. Variables: actions, the action words in
    alphabetical order. `format: prose` says with each observation how to answer; `format: short` never does,
    and its default is `Actions:` and the words."""
    prompts: ShortPrompts | None = None
    """The prompts of `format: short`, and only of that; `null` takes its defaults."""

    @model_validator(mode="before")
    @classmethod
    def _realms_by_default(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("actions") == "realms" and values.get("realms") is None:
            return {**values, "realms": RealmConfig()}
        return values

    @model_validator(mode="before")
    @classmethod
    def _short_by_default(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("format") == "short":
            given = {key: value for key, value in values.items() if value is not None or key != "prompts"}
            return {"instructions": _SHORT_INSTRUCTIONS, "prompts": ShortPrompts(), **given}
        return values

    @model_validator(mode="after")
    def _possible_ranges(self) -> FrozenLakeConfig:
        self.require_ranges(rows=1, columns=1, holes=0, path_length=1)
        smallest_cells = self.rows[0] * self.column_range[0]
        if smallest_cells < 2:
            raise ValueError(f"rows: {list(self.rows)}: a board needs at least two cells, for start and goal")
        if (self.holes is None) == (self.hole_probability is None):
            raise ValueError("set exactly one of holes and hole_probability, and the other to null")
        if self.holes is not None and self.holes[1] > smallest_cells - 2:
            raise ValueError(
                f"holes: {list(self.holes)}: allowed are at most {smallest_cells - 2}, since the "
                f"smallest board has {smallest_cells} cells"
            )
        if self.path_length[1] > self.max_steps:
            raise ValueError(
                f"path_length: {list(self.path_length)}: allowed is at most {self.max_steps}, since longer "
                f"ways cannot be walked with max_steps: {self.max_steps}"
            )
        return self

    @model_validator(mode="after")
    def _fits_format_and_actions(self) -> FrozenLakeConfig:
        if self.realms is not None and self.actions != "realms":
            raise ValueError(
                f"realms: only actions: realms takes it; allowed with actions: {self.actions} is null"
            )
        if self.prompts is not None and self.format != "short":
            raise ValueError(
                f"prompts: only format: short takes it; allowed with format: {self.format} is null"
            )
        if self.format == "short" and self.action_mode != "plan":
            raise ValueError("format: short has its actions in one turn; set action_mode: plan")
        if self.format == "short" and max(self.frame) > MOST_PLACES:
            raise ValueError(
                f"format: short names rows and columns by one digit; allowed are boards up to {MOST_PLACES}x"
                f"{MOST_PLACES}"
            )
        if self.format == "compact" and self.actions == "named":
            raise ValueError(
                "actions: named has no compact form; allowed are hidden_world, per_task and realms, or "
                "format: prose"
            )
        return self
