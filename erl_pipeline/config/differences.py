"""Which settings of two configurations differ, for people to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from erl_pipeline.config.run import RunConfig
from storage.runs.run import config_differences


def changed_settings(old: RunConfig, new: RunConfig) -> list[str]:
    """Settings that differ, one `key: old -> new` each; the name and where the run ends left out."""
    return settings_differences(_settings(old), _settings(new))


def settings_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Like `config_differences`; a group that was switched on or off is one line."""
    switched = [key for key in old.keys() & new.keys() if (old[key] is None) != (new[key] is None)]
    lines = [
        line
        for line in config_differences(old, new)
        if not any(line.startswith((f"{key}.", f"{key}:")) for key in switched)
    ]
    return lines + [f"{key}: {'off -> on' if old[key] is None else 'on -> off'}" for key in sorted(switched)]


def _settings(config: RunConfig) -> Mapping[str, Any]:
    return config.model_dump(mode="json", exclude={"name", "iterations"})
