"""Settings of FrozenLake."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.config.prompts import PromptTemplates
from erl_pipeline.config.templates import check_template
from erl_pipeline.environments.board_twins import Twins

PERMUTATIONS = 24
"""How many there are of four action words."""

MOST_PLACES = 9
"""Rows and columns of a board whose places `format: short` can name."""

_INSTRUCTIONS = (
    "You act in a world that is shown as a grid of symbols. Its rules and the meaning of the symbols are not "
    "told; find out what leads to success. You may think first; the last square brackets count. The possible "
    "actions are: {{ actions | join(', ') }}."
)

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


class FrozenLakeConfig(PluginSettings):
    """FrozenLake without slipping, on gymnasium's rules: reward 1 at the goal, holes end the attempt."""

    type: Literal["frozen_lake"] = "frozen_lake"
    task_file: str | None = None
    """Training boards: JSON lines `{"task_id", "board": [rows], "max_steps"}`; `null`: generated."""
    held_out_file: str | None = None
    """Held-out boards, in lines of the same form; `null`: generated."""
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
    rows: tuple[int, int] = (4, 4)
    """Least and most rows of a generated board."""
    columns: tuple[int, int] | None = None
    """Least and most columns of a generated board; `null` makes square boards."""
    holes: tuple[int, int] | None = (1, 4)
    """Least and most holes of a generated board; `null` when `hole_probability` is set."""
    hole_probability: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Chance of each cell to be a hole, instead of a number of holes."""
    path_length: tuple[int, int] = (2, 6)
    """Least and most moves on the shortest way from start to goal of a generated board."""
    max_steps: int = Field(default=6, ge=1)
    """Moves in one attempt. A task file's own `max_steps` wins for its tasks."""
    action_mode: Literal["step", "plan"] = "step"
    """`step`: one action a turn, with an observation after each. `plan`: all actions in one turn."""
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
    permute_symbols: bool = False
    """Another permutation of the symbols for each task."""
    instructions: str = _INSTRUCTIONS
    """What a language model is told first, as a Jinja template. Variables: actions, the action words in
    alphabetical order. `format: prose` says with each observation how to answer; `format: short` never does,
    and its default is `Actions:` and the words."""
    prompts: ShortPrompts | None = None
    """The prompts of `format: short`, and only of that; `null` takes its defaults."""

    @property
    def column_range(self) -> tuple[int, int]:
        """Least and most columns; square boards have those of `rows`."""
        return self.columns or self.rows

    @property
    def frame(self) -> tuple[int, int]:
        """Rows and columns of the largest board."""
        return self.rows[1], self.column_range[1]

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

    @field_validator("instructions")
    @classmethod
    def _instructions_can_be_rendered(cls, template: str) -> str:
        return check_template("instructions", template, {"actions": ["a", "b"]})

    @model_validator(mode="after")
    def _possible_ranges(self) -> FrozenLakeConfig:
        for key, value, least in (
            ("rows", self.rows, 1),
            ("columns", self.columns, 1),
            ("holes", self.holes, 0),
            ("path_length", self.path_length, 1),
        ):
            if value is not None and not least <= value[0] <= value[1]:
                raise ValueError(
                    f"{key}: {list(value)}: allowed is [least, most] with {least} <= least <= most"
                )
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
    def _realms_have_a_use(self) -> FrozenLakeConfig:
        if self.realms is not None and self.actions != "realms":
            raise ValueError(
                f"realms: only actions: realms takes it; allowed with actions: {self.actions} is null"
            )
        return self

    @model_validator(mode="after")
    def _prompts_have_a_use(self) -> FrozenLakeConfig:
        if self.prompts is not None and self.format != "short":
            raise ValueError(
                f"prompts: only format: short takes it; allowed with format: {self.format} is null"
            )
        return self

    @model_validator(mode="after")
    def _short_is_a_plan(self) -> FrozenLakeConfig:
        if self.format == "short" and self.action_mode != "plan":
            raise ValueError("format: short has its actions in one turn; set action_mode: plan")
        if self.format == "short" and max(self.frame) > MOST_PLACES:
            raise ValueError(
                f"format: short names rows and columns by one digit; allowed are boards up to {MOST_PLACES}x"
                f"{MOST_PLACES}"
            )
        return self

    @model_validator(mode="after")
    def _distinct_words(self) -> FrozenLakeConfig:
        for key, words in (("action_words", self.action_words), ("symbols", self.symbols)):
            if len(set(words)) != 4 or any(word != "".join(word.split()) or not word for word in words):
                raise ValueError(f"{key}: {list(words)}: allowed are four different words without spaces")
        if any(len(symbol) != 1 for symbol in self.symbols):
            raise ValueError(f"symbols: {list(self.symbols)}: allowed are four single characters")
        if any(word != word.lower() for word in self.action_words):
            raise ValueError(f"action_words: {list(self.action_words)}: allowed are words in lower case")
        return self

    @model_validator(mode="after")
    def _compact_hides_its_actions(self) -> FrozenLakeConfig:
        if self.format == "compact" and self.actions == "named":
            raise ValueError(
                "actions: named has no compact form; allowed are hidden_world, per_task and realms, or "
                "format: prose"
            )
        return self
