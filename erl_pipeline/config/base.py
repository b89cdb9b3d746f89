"""The base classes of all configuration models: strict, frozen, and free of torch."""

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A group of settings. Unknown keys are refused and values never change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


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
