"""The base classes of all configuration models: strict, frozen, and free of torch."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A group of settings. Unknown keys are refused and values never change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class PluginSettings(Settings):
    """The settings of a plug-in. Each subclass names its plug-in:
    `type: Literal["frozen_lake"] = "frozen_lake"`."""

    type: str


class NotInstalledSettings(PluginSettings):
    """The settings of a plug-in that is not installed, as a run has stored them."""

    model_config = ConfigDict(extra="allow")


def switch(value: Any) -> Any:
    """The value of a group of settings that may be `off` (YAML's false) or `on` (true, the defaults)."""
    if value is False:
        return None
    return {} if value is True else value
