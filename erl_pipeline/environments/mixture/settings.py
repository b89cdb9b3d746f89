"""Settings of a mixture."""

import re
from typing import Any, Literal

from pydantic import Field, SerializeAsAny, ValidationError, field_validator, model_validator

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.config.explain import explain
from erl_pipeline.config.plugins import plugins
from storage.errors import ConfigError

TYPE = "mixture"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class PartConfig(Settings):
    """One environment of a mixture."""

    environment: SerializeAsAny[PluginSettings]
    """The settings of any installed environment but another mixture; a bare name takes its defaults."""
    weight: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)
    """Each iteration's tasks, and the held-out tasks, hold the parts in proportion to their weights."""

    @model_validator(mode="before")
    @classmethod
    def _known_environment(cls, values: Any) -> Any:
        # Looked up here and not at import: this module is imported while installed environments are found.
        if not isinstance(values, dict) or "environment" not in values:
            return values
        return {**values, "environment": _environment(values["environment"])}


def _environment(value: Any) -> PluginSettings:
    """The settings of an environment, by their `type`. Raises ValueError for wrong ones."""
    if isinstance(value, PluginSettings):
        return value
    given = {"type": value} if isinstance(value, str) else value
    type_ = given.get("type") if isinstance(given, dict) else None
    installed = plugins("environments")
    others = [name for name in installed.found if name != TYPE]
    if not isinstance(given, dict) or not isinstance(type_, str):
        raise ValueError(f"environment.type: missing; allowed: {', '.join(others)}")
    if type_ == TYPE:
        raise ValueError("environment.type: mixture within a mixture; list the parts of both side by side")
    try:
        plugin = installed[type_]
    except ConfigError as error:
        raise ValueError(f"environment.type: {error}") from None
    model = plugin.settings
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise ValueError("environment." + "; environment.".join(explain(error, model, {}))) from None


class MixtureConfig(PluginSettings):
    """Several environments in one run. Each task is of one part and has that part's prompts, tools, feedback
    and reward; its id and its type begin with the part's name, `NAME/`."""

    type: Literal["mixture"] = "mixture"
    parts: dict[str, PartConfig]
    """Name -> environment and weight. The ids of the part's tasks begin with the name."""

    @field_validator("parts")
    @classmethod
    def _several_with_names(cls, parts: dict[str, PartConfig]) -> dict[str, PartConfig]:
        if len(parts) < 2:
            raise ValueError("parts: allowed are two parts or more; a single environment needs no mixture")
        for name in parts:
            if _NAME.fullmatch(name) is None:
                raise ValueError(
                    f"parts: {name!r}: allowed are names of letters, digits, `_` and `-` that begin with a "
                    "letter or a digit"
                )
        # Recipes do not keep the order of names, so it must not matter.
        return dict(sorted(parts.items()))
