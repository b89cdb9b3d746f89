"""Changing settings within settings, by dotted keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from erl_pipeline.config.base import Settings

SettingsT = TypeVar("SettingsT", bound=Settings)


def with_settings(settings: SettingsT, values: Mapping[str, Any]) -> SettingsT:
    """The same settings with new values at dotted keys, such as `task_file` or
    `parts.lake.environment.task_file`.

    Values are not validated. Raises KeyError for a key that does not exist.
    """
    for key, value in values.items():
        settings = _with(settings, key.split("."), value)
    return settings


def _with(group: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    if isinstance(group, Settings):
        if name not in type(group).model_fields:
            raise KeyError(name)
        inner = _with(getattr(group, name), rest, value) if rest else value
        return group.model_copy(update={name: inner})
    if not isinstance(group, Mapping) or name not in group:
        raise KeyError(name)
    return {**group, name: _with(group[name], rest, value) if rest else value}
