"""Which settings of a trainer are part of recipes, and which only say where and how it runs."""

from __future__ import annotations

from typing import Any

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.plugins.installed import plugins


def operational_names(type_: str) -> frozenset[str]:
    """Names of the settings of this type of trainer that no artifact depends on, and that may change during a
    run. None for a trainer that is not installed."""
    plugin = plugins("trainers").found.get(type_)
    if plugin is None or plugin.value.in_recipes is None:
        return frozenset()
    return frozenset(plugin.settings.model_fields.keys() - plugin.value.in_recipes.model_fields.keys())


def as_in_recipes(trainer: PluginSettings) -> PluginSettings:
    """The settings of a trainer as recipes hold them."""
    names = operational_names(trainer.type)
    if not names & type(trainer).model_fields.keys():
        return trainer
    model: type[PluginSettings] = plugins("trainers")[trainer.type].value.in_recipes
    return model.model_validate(trainer.model_dump(exclude=set(names)))


def operational_part(trainer: PluginSettings) -> dict[str, Any]:
    """The settings that a worker is given besides the recipe."""
    return trainer.model_dump(mode="json", include=set(operational_names(trainer.type)))


def operational_part_here(trainer: PluginSettings) -> dict[str, Any]:
    """As `operational_part`, where all is computed on this machine: nodes that a runner would have to find
    are left out, so all of the trainer's processes are here."""
    if plugins("trainers")[trainer.type].value.nodes_to_find(trainer) is not None:
        return {}
    return operational_part(trainer)


def with_operational(trainer: PluginSettings, operational: dict[str, Any]) -> PluginSettings:
    """The trainer of a recipe with this worker's operational settings."""
    return plugins("trainers")[trainer.type].settings.model_validate({**trainer.model_dump(), **operational})
