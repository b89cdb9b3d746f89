"""Tasks that are another one, seen in a different way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.environments.interface import EnvironmentPlugin, Task


def with_twin(
    plugin: EnvironmentPlugin[Any], settings: PluginSettings, tasks: Sequence[Task], others: Sequence[Task]
) -> int | None:
    """How many of the tasks are a twin of another one of `others`; None where no task can have any."""
    keys = {_key(plugin, settings, task) for task in others} - {None}
    return sum(_key(plugin, settings, task) in keys for task in tasks) if keys else None


def _key(plugin: EnvironmentPlugin[Any], settings: PluginSettings, task: Task) -> str | None:
    """What is equal for twins; None for a task that has none."""
    part, own = plugin.part(settings, task)
    return None if part.plugin.twin_key is None else f"{own.environment} {part.plugin.twin_key(own.payload)}"
