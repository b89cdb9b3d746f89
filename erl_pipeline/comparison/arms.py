"""The arms of a comparison: a name, and the settings in which it differs from the base configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from erl_pipeline.config.loading.load import load_config
from erl_pipeline.config.plugins.installed import plugins
from erl_pipeline.config.run import RunConfig
from storage.errors import ConfigError

GIVEN = ("name", "seed", "iterations", "runner", "resources")
"""Settings that the comparison itself sets for every run."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_PART = re.compile(r"(\+|-no-)([a-z_][a-z0-9_]*)")


@dataclass(frozen=True)
class Arm:
    """One way to train. Each of `overrides` is a `dotted.key=value` on top of the base configuration."""

    name: str
    overrides: tuple[str, ...] = ()

    @property
    def run_part(self) -> str:
        """Its name in the form used in names of runs."""
        return self.name.replace("+", "-with-")


def arm_of_settings(name: str, settings: Mapping[str, Any]) -> Arm:
    """An arm from a file; `settings` maps dotted key -> value.

    Raises ConfigError for a name that is not allowed, and for a setting in `GIVEN`.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"arm {name!r}: allowed are letters, digits, '.', '_', '+' and '-'")
    return Arm(name, as_overrides(settings, f"arm {name}"))


def as_overrides(settings: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Settings in the form that `--set` takes. Raises ConfigError, with `where`, for those in `GIVEN`."""
    for key in settings:
        if key.partition(".")[0] in GIVEN:
            raise ConfigError(
                f"{where}: {key} cannot be set here; the comparison gives each run its "
                f"{', '.join(GIVEN[:-1])} and {GIVEN[-1]}"
            )
    return tuple(f"{key}={json.dumps(value)}" for key, value in settings.items())


def arm_of_method(name: str, base: RunConfig) -> Arm:
    """The arm that a name such as `erl`, `rlvr+distillation` or `erl-no-memory` describes.

    The method of the base configuration keeps its settings from there; another method has its defaults.
    `+PART` turns a group of the method's settings on, `-no-PART` turns it off.

    Raises ConfigError if the name does not begin with an installed method, or goes on in another way.
    """
    known = plugins("methods").found
    method = max((each for each in known if name.startswith(each)), key=len, default="")
    parts = _PART.findall(name[len(method) :])
    if not method or "".join(sign + part for sign, part in parts) != name[len(method) :]:
        raise ConfigError(
            f"arm {name}: no such arm; allowed are a method ({', '.join(known)}), METHOD+PART and "
            "METHOD-no-PART with a part that can be on and off, such as erl-no-memory, and the arms of a "
            "comparison file"
        )
    settings: dict[str, Any] = {} if method == base.method.type else {"method": {"type": method}}
    settings |= {f"method.{part}": sign == "+" for sign, part in parts}
    return arm_of_settings(name, settings)


def load_arm(arm: Arm, base_path: str, overrides: Sequence[str]) -> RunConfig:
    """The configuration of an arm. Raises ConfigError, which names the arm, if its settings are refused."""
    try:
        return load_config(base_path, [*overrides, *arm.overrides])
    except ConfigError as error:
        raise ConfigError(f"arm {arm.name}: {error}") from error
