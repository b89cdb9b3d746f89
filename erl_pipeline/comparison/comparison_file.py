"""Reading a comparison file: a base configuration, and the arms that differ from it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from erl_pipeline.comparison.arms import Arm, arm_of_settings, as_overrides
from erl_pipeline.config.base import Settings
from erl_pipeline.config.loading.explain import explain, parse_yaml
from storage.errors import ConfigError

_KEY = "comparison"


class ComparisonSettings(Settings):
    """The settings below the key `comparison:`."""

    base: str
    """Path of the run configuration from which all arms start, relative to the comparison file."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of all arms, on top of the base configuration: dotted key -> value, as for `--set`."""
    baseline: str | None = None
    """The arm with which every other arm is compared; `null`: the first."""
    arms: dict[str, dict[str, Any] | None]
    """Name of an arm -> its settings, on top of those of all arms: dotted key -> value."""


@dataclass(frozen=True)
class Given:
    """What a comparison is made from. `arms` is empty if a plain run configuration was given."""

    base: str
    overrides: tuple[str, ...]
    arms: tuple[Arm, ...]
    baseline: str | None


def read_comparison(path: Path) -> Given:
    """Read a comparison file, or take a run configuration as the base of a comparison.

    Raises ConfigError for a file that cannot be read, is not YAML, or whose settings are unknown or wrong.
    """
    document = parse_yaml(_text(path), str(path))
    values = document.value
    if not isinstance(values, dict) or _KEY not in values:
        return Given(str(path), (), (), None)
    if len(values) > 1:
        others = ", ".join(key for key in values if key != _KEY)
        raise ConfigError(f"{path}: {others}: not allowed beside `{_KEY}:`; put it below `settings:`")
    try:
        settings = ComparisonSettings.model_validate(values[_KEY])
    except ValidationError as error:
        lines = {key[1:]: f"line {line}" for key, line in document.lines.items() if len(key) > 1}
        problems = explain(error, ComparisonSettings, lines)
        raise ConfigError("\n  ".join([f"{path}:", *problems])) from error
    arms = tuple(arm_of_settings(name, given or {}) for name, given in settings.arms.items())
    if not arms:
        raise ConfigError(f"{path}: arms: there is none; name two or more")
    return Given(
        base=os.path.normpath(path.parent / settings.base),
        overrides=as_overrides(settings.settings, f"{path}: settings"),
        arms=arms,
        baseline=settings.baseline,
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; ready comparisons are in configs/comparisons/") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
