"""The base classes of all configuration models: strict, frozen, and free of torch."""

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails


class Settings(BaseModel):
    """A group of settings. Unknown keys are refused and values never change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_switches(cls, values: Any) -> Any:
        """Pydantic takes true for 1 and false for 0; `on` where a number belongs is a mistake."""
        if not isinstance(values, Mapping):
            return values
        problems: list[InitErrorDetails] = []
        for name, field in cls.model_fields.items():
            value = values.get(name)
            if value is False and any(isinstance(each, BeforeValidator) for each in field.metadata):
                continue  # such a field has its own meaning of `off`
            if wrong := _wrong_switch(value, [field.annotation]):
                problems.append({"type": wrong, "loc": (name,), "input": value})
        if problems:
            raise ValidationError.from_exception_data(cls.__name__, problems)
        return values


def _wrong_switch(value: Any, allowed: Sequence[Any]) -> str | None:
    """Pydantic's type of error for a bool where these annotations have a number and no bool; None for all
    else."""
    kinds = [kind for each in allowed for kind in _kinds(each)]
    if isinstance(value, bool):
        if any(kind in (bool, Any) or isinstance(kind, bool) for kind in kinds):
            return None
        return "float_type" if float in kinds else "int_type" if int in kinds else None
    if not isinstance(value, list | tuple | dict):
        return None
    parts = list(value.values()) if isinstance(value, dict) else value
    within = [get_args(kind) for kind in kinds if get_origin(kind) in (list, tuple, dict)]
    wrong = (_wrong_switch(part, arguments) for arguments in within for part in parts)
    return next((each for each in wrong if each), None)


def _kinds(annotation: Any) -> list[Any]:
    """The types of a union, and the values of literals."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return list(parts)
    if origin is Annotated:
        return _kinds(parts[0])
    return [kind for part in parts for kind in _kinds(part)] if origin in (Union, UnionType) else [annotation]


class PluginSettings(Settings):
    """The settings of a plug-in. Each subclass names its plug-in:
    `type: Literal["frozen_lake"] = "frozen_lake"`."""

    type: str


SettingsT = TypeVar("SettingsT", bound=PluginSettings)
"""The settings of one plug-in."""


class NotInstalledSettings(PluginSettings):
    """The settings of a plug-in that is not installed, as a run has stored them."""

    model_config = ConfigDict(extra="allow")


def switch(value: Any) -> Any:
    """The value of a group of settings that may be `off` (YAML's false) or `on` (true, the defaults)."""
    if value is False:
        return None
    return {} if value is True else value


AnySettingsT = TypeVar("AnySettingsT", bound=Settings)


def with_settings(settings: AnySettingsT, values: Mapping[str, Any]) -> AnySettingsT:
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
    if isinstance(group, Mapping) and ".".join(path) in group:
        return {**group, ".".join(path): value}  # such as the name of a file
    if not isinstance(group, Mapping) or name not in group:
        raise KeyError(name)
    return {**group, name: _with(group[name], rest, value) if rest else value}


def checked_address(url: str) -> str:
    """The address, without a slash at its end. Settings are stored, so it may hold no key.

    Raises ValueError for what is no address of a server, or holds a name, a password or a query.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url}: allowed are addresses such as http://gpu-1:8000")
    if parts.username is not None or parts.password is not None or parts.query:
        raise ValueError(
            "it holds a name, a password or a query, and settings are stored; put the key into an "
            "environment variable and name that in api_key_variable"
        )
    return url.rstrip("/")


def named(value: Any) -> Any:
    """Settings that are only a name, as those of this type with its defaults."""
    return {"type": value} if isinstance(value, str) else value
