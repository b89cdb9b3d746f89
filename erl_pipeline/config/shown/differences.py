"""The settings in which two configurations differ, for people to read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig

_ABSENT = object()


def changed_settings(old: RunConfig, new: RunConfig) -> list[str]:
    """Settings that differ, as one `key: old -> new` each; `name` and `iterations` are left out."""
    return settings_differences(_settings(old), _settings(new))


def settings_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One `dotted.key: old -> new` for each setting that differs.

    A group that was switched on or off is one line, and so is a group with another `type`.
    """
    return list(_differences(old, new, ""))


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key in dict.fromkeys([*old, *new]):
        before, after = old.get(key, _ABSENT), new.get(key, _ABSENT)
        name = f"{prefix}{key}"
        if before == after:
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            kinds = before.get("type"), after.get("type")
            if kinds[0] != kinds[1]:
                yield f"{name}.type: {_shown(kinds[0])} -> {_shown(kinds[1])}"
            else:
                yield from _differences(before, after, f"{name}.")
        elif isinstance(before, Mapping) and after is None:
            yield f"{name}: on -> off"
        elif before is None and isinstance(after, Mapping):
            yield f"{name}: off -> on"
        elif isinstance(before, Mapping) and before and after is _ABSENT:
            yield from _differences(before, {}, f"{name}.")
        elif isinstance(after, Mapping) and after and before is _ABSENT:
            yield from _differences({}, after, f"{name}.")
        else:
            yield f"{name}: {_shown(before)} -> {_shown(after)}"


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else json.dumps(value, ensure_ascii=False)


def _settings(config: RunConfig) -> Mapping[str, Any]:
    return config.model_dump(mode="json", exclude={"name", "iterations"})
