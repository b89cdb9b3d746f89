"""The environments by the `type` of their settings."""

from __future__ import annotations

from pathlib import Path

from erl_pipeline.config.environment import EnvironmentConfig
from erl_pipeline.environments.base import Task, TextEnvironment
from erl_pipeline.environments.frozen_lake import environment, tasks
from erl_pipeline.environments.frozen_lake.tiny.prompts import CompactPrompts
from erl_pipeline.episodes.chat_prompts import ChatPrompts
from erl_pipeline.episodes.prompts import PromptFormat


def training_tasks(config: EnvironmentConfig, seed: int) -> list[Task]:
    """All training tasks. `seed` is the run's. Raises `InputError` for a bad task file."""
    return tasks.training_tasks(config, seed)


def held_out_tasks(config: EnvironmentConfig, seed: int, count: int) -> list[Task]:
    """`count` tasks that no training task equals; a smaller count gives the beginning of the same list."""
    return tasks.held_out_tasks(config, seed, count)


def tasks_from_file(config: EnvironmentConfig, seed: int, path: Path) -> list[Task]:
    """The tasks of a file. Raises `InputError` naming the file, the line and what is wrong."""
    return tasks.tasks_from_file(config, seed, path)


def open_environment(config: EnvironmentConfig, task: Task) -> TextEnvironment:
    """A fresh environment for one attempt at the task."""
    return environment.open_frozen_lake(config, task)


def prompt_format(config: EnvironmentConfig) -> PromptFormat:
    """The prompts that go with the environment's rendering."""
    return CompactPrompts(config.action_words) if config.format == "compact" else ChatPrompts()
