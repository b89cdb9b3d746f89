"""What every configuration model is made of: strict, frozen, and free of torch."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A group of settings. Unknown keys are refused and values never change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class PluginSettings(Settings):
    """The settings of a plug-in, which is known by their type. Those of a plug-in say which it is:
    `type: Literal["frozen_lake"] = "frozen_lake"`."""

    type: str


def switch(value: Any) -> Any:
    """`off` (YAML's false) and `on` (true, the defaults) stand for a whole group of settings."""
    if value is False:
        return None
    return {} if value is True else value
