"""Settings as they are shown: descriptions of each, and differences between two configurations."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from erl_pipeline.config.base import Settings

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig


@dataclass(frozen=True)
class DescribedSetting:
    """One setting. `default` is a JSON value; `required` says that there is no default."""

    key: str
    type: str
    default: Any
    required: bool
    text: str


def describe_settings(model: type[Settings], prefix: str = "") -> Iterator[DescribedSetting]:
    """Every setting of a model, in its order. The settings of a group follow it, with dotted keys."""
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        text = " ".join((field.description or "").split())
        yield DescribedSetting(key, _type(field.annotation), _default(field), field.is_required(), text)
        group = _group(field.annotation)
        if group is not None:
            yield from describe_settings(group, f"{key}.")


def _default(field: FieldInfo) -> Any:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return None
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return list(value) if isinstance(value, tuple) else value


def _group(annotation: Any) -> type[Settings] | None:
    """The group of settings in a type, even if it may be null; None if there is none or a choice."""
    members = [each for each in get_args(annotation) if each is not type(None)] or [annotation]
    only = members[0] if len(members) == 1 else None
    return only if isinstance(only, type) and issubclass(only, Settings) else None


def _type(annotation: Any) -> str:
    """A type in few words, in the way in which configurations write values."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        return " | ".join(map(_type, arguments))
    if origin in (tuple, list):
        inner = [_type(each) for each in arguments if each is not Ellipsis]
        return f"[{', '.join(inner)}{', ...' if origin is list or Ellipsis in arguments else ''}]"
    if origin is dict:
        return f"{{{_type(arguments[0])}: {_type(arguments[1])}}}"
    if annotation is type(None):
        return "null"
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return "settings"
    names: dict[Any, str] = {str: "text", int: "whole number", float: "number", bool: "true | false"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


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
