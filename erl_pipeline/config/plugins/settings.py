"""Groups of settings that plug-ins define. A `type` chooses one among all that are installed."""

from __future__ import annotations

import functools
import operator
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.plugins.installed import Group, plugins
from storage.errors import ConfigError


def settings_of(group: Group) -> Any:
    """The type of a setting that accepts the settings of any plug-in of a group. A bare name means the
    plug-in with its default settings. Raises ConfigError if no plug-in of the group can be used."""
    known = plugins(group)
    if not known.found:
        problems = "; ".join(f"{each.type}: {each.problem}" for each in known.broken)
        raise ConfigError(f"no plug-in of {group} can be used ({problems or 'none is installed'})")
    found: list[type[PluginSettings]] = [plugin.settings for plugin in known.found.values()]
    union = functools.reduce(operator.or_, found)
    by_type = Annotated[union, Field(discriminator="type")] if len(found) > 1 else union
    return Annotated[by_type, BeforeValidator(_named)]


def function_of(group: Group) -> AfterValidator:
    """What a setting that names a function of a group is checked by: there must be one of this name."""

    def known(name: str) -> str:
        try:
            plugins(group)[name]
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return name

    return AfterValidator(known)


def _named(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value
