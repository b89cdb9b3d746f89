"""Settings of the tasks of reasoning-gym."""

from typing import Any, Literal

from pydantic import Field, field_validator

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.environments.reasoning_gym.library import require_qualified

AnswerFormat = Literal["tag", "boxed", "last_line", "whole"]
Reward = Literal["exact", "score"]


class DatasetConfig(Settings):
    """How many tasks are of one dataset of reasoning-gym, and how hard they are."""

    weight: float = Field(default=1.0, gt=0.0)
    """Its share of the tasks, in proportion to the weights of the others."""
    config: dict[str, Any] = Field(default={})
    """Settings of the dataset itself, such as `{max_word_len: 5}`, as reasoning-gym documents them."""

    @field_validator("config")
    @classmethod
    def _size_and_seed_are_given(cls, config: dict[str, Any]) -> dict[str, Any]:
        for name, instead in (("seed", "task_seed"), ("size", "training_tasks")):
            if name in config:
                raise ValueError(f"config: {name} is set by environment.{instead}")
        return config


class ReasoningGymConfig(PluginSettings):
    """Questions with one answer each, generated and scored by reasoning-gym."""

    type: Literal["reasoning_gym"] = "reasoning_gym"
    tasks: dict[str, DatasetConfig] = Field(default={"leg_counting": DatasetConfig()})
    """Names of datasets; one name or a list of names is allowed too."""
    training_tasks: int = Field(default=1024, ge=1, le=100_000)
    """Training tasks of all datasets together, all with different questions."""
    test_tasks: int | None = Field(default=None, ge=1, le=100_000)
    """Tasks of a third split. Only `compare` uses it, for its report. `null`: there is none, and its
    questions may be trained on."""
    task_seed: int = Field(default=0, ge=0)
    """The tasks derive from it alone, so that runs with different seeds share their tasks."""
    answer_format: AnswerFormat = "tag"
    """Where the answer is looked for: `tag` between <answer> and </answer>, `boxed` in \\boxed{}, `last_line`
    on the last line that is not empty, `whole` is the whole text."""
    reward: Reward = "exact"
    """`exact`: 1 for an answer with score 1, 0 for all others. `score`: the score, from 0 to 1."""
    instructions: str = "Answer the question."
    """What a policy is told before the question. How to give the answer is said after the question."""

    @field_validator("tasks", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {value: {}}
        if isinstance(value, list):
            if len(set(map(str, value))) != len(value):
                raise ValueError(f"tasks: {value}: each name is allowed once; weights make one more frequent")
            return {name: {} for name in value}
        if isinstance(value, dict):
            return {name: {} if settings is None else settings for name, settings in value.items()}
        return value

    @field_validator("tasks")
    @classmethod
    def _that_qualify(cls, tasks: dict[str, DatasetConfig]) -> dict[str, DatasetConfig]:
        if not tasks:
            raise ValueError("tasks: at least one name is needed")
        for name in tasks:
            require_qualified(name)
        return tasks
