"""The base of every configuration model: strict, frozen, and free of torch."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A group of settings. Unknown keys are refused and values never change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class PluginSettings(Settings):
    """The settings of a plug-in, which is known by their type. Those of a plug-in say which it is:
    `type: Literal["frozen_lake"] = "frozen_lake"`."""

    type: str
