"""Which settings of a plug-in are part of recipes, and which only say where and how it runs.

An engine or a trainer names the settings that its results depend on by `in_recipes`, a model which its
settings extend. All others may change during a run, and no artifact's id depends on them.
"""

from __future__ import annotations

from typing import Any, Literal

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.plugins.installed import plugins

Operated = Literal["engines", "trainers"]


def operational_names(group: Operated, type_: str) -> frozenset[str]:
    """Names of the settings of this plug-in that no artifact depends on. None for one that is not
    installed."""
    plugin = plugins(group).found.get(type_)
    if plugin is None or plugin.value.in_recipes is None:
        return frozenset()
    return frozenset(plugin.settings.model_fields.keys() - plugin.value.in_recipes.model_fields.keys())


def as_in_recipes(group: Operated, settings: PluginSettings) -> PluginSettings:
    """The settings as recipes hold them."""
    names = operational_names(group, settings.type)
    if not names & type(settings).model_fields.keys():
        return settings
    model: type[PluginSettings] = plugins(group)[settings.type].value.in_recipes
    return model.model_validate(settings.model_dump(exclude=set(names)))


def operational_part(group: Operated, settings: PluginSettings) -> dict[str, Any]:
    """The settings that a worker is given besides the recipe."""
    return settings.model_dump(mode="json", include=set(operational_names(group, settings.type)))


def with_operational(
    group: Operated, settings: PluginSettings, operational: dict[str, Any]
) -> PluginSettings:
    """The settings of a recipe with those of this worker."""
    return plugins(group)[settings.type].settings.model_validate({**settings.model_dump(), **operational})
