"""The file of a comparison: the configuration that arms start from, and how each of them differs."""

import itertools
import json
import os
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from erl_pipeline.comparison.measures import TokenMeasure
from erl_pipeline.config.base import Settings
from erl_pipeline.config.explain import parse_yaml
from erl_pipeline.config.loading import all_problems, load_config, read_settings
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.run import RunConfig
from storage.artifacts.recipe import derive_seed
from storage.errors import ConfigError

GIVEN = ("name", "seed", "iterations", "runner", "resources")
"""Settings that the comparison itself sets for every run."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_PART = re.compile(r"(\+|-no-)([a-z_][a-z0-9_]*)")

NOT_SEARCHED = ("environment", "evaluation")
"""Groups of settings that no arm may search: they change what is measured, not how the arm learns."""

Searched = tuple[tuple[str, ...], ...]
"""For each setting that an arm searches its values, each as a `dotted.key=value`."""


@dataclass(frozen=True)
class Arm:
    """One way to train. Each of `overrides` is a `dotted.key=value` on top of the base configuration.
    `search`: settings whose best values are found on held-out tasks."""

    name: str
    overrides: tuple[str, ...] = ()
    search: Searched = ()

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
    fixed = {key: value for key, value in settings.items() if key != _SEARCH}
    return Arm(name, as_overrides(fixed, f"arm {name}"), _searched(settings.get(_SEARCH, {}), f"arm {name}"))


def _searched(values: Any, arm: str) -> Searched:
    """An arm's values to search. Raises ConfigError, with `arm`, for anything but lists of values."""
    if not isinstance(values, dict) or not all(isinstance(each, list) and each for each in values.values()):
        raise ConfigError(
            f"{arm}: search: not allowed as it is; give each setting a list of values, such as "
            "search: {optimizer.learning_rate: [1.0e-4, 3.0e-4]}"
        )
    for key in values:
        if key.partition(".")[0] in NOT_SEARCHED:
            raise ConfigError(f"{arm}: search: {key} changes what is measured; search how the arm learns")
    return tuple(
        tuple(override for value in each for override in as_overrides({key: value}, f"{arm}: search"))
        for key, each in values.items()
    )


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
    `+PART` turns a group of settings on, `-no-PART` turns it off: one beside the method, such as `replay`, or
    of the method, such as `memory`.

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
    beside = RunConfig.model_fields
    settings |= {part if part in beside else f"method.{part}": sign == "+" for sign, part in parts}
    return arm_of_settings(name, settings)


def load_arm(arm: Arm, base_path: str, overrides: Sequence[str]) -> RunConfig:
    """The configuration of an arm. Raises ConfigError, which names the arm, if its settings are refused."""
    try:
        return load_config(base_path, [*overrides, *arm.overrides])
    except ConfigError as error:
        raise ConfigError(f"arm {arm.name}: {error}") from error


_KEY, _SEARCH = "comparison", "search"


class SearchSettings(Settings):
    """The search for settings before the test: each arm tries as many, on held-out tasks alone."""

    budget: int = Field(ge=1)
    """Trials of each arm."""
    seeds: int = Field(ge=1)
    """Runs of each trial, with seeds that no run of the comparison has."""
    measure: TokenMeasure = "area_by_tokens"
    """What the best trial of an arm has most of, as a mean over seeds. Of equal trials the first counts."""


class ComparisonSettings(Settings):
    """The settings below the key `comparison:`."""

    base: str
    """Path of the run configuration from which all arms start, relative to the comparison file."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of all arms, on top of the base configuration: dotted key -> value, as for `--set`."""
    baseline: str | None = None
    """The arm with which every other arm is compared; `null`: the first."""
    search: SearchSettings | None = None
    """How many settings each arm tries before the test; `null`: none. Then no arm has a search."""
    arms: dict[str, dict[str, Any] | None]
    """Name of an arm -> its settings, on top of those of all arms: dotted key -> value. Under `search`,
    dotted key -> values to try."""


@dataclass(frozen=True)
class Given:
    """What a comparison is made from. `arms` is empty if a plain run configuration was given. `overrides`
    name a comparison after its file, so that two from one base keep their runs and results apart."""

    base: str
    overrides: tuple[str, ...]
    arms: tuple[Arm, ...]
    baseline: str | None
    search: SearchSettings | None = None


def read_comparison(path: Path) -> Given:
    """Read a comparison file, or take a run configuration as the base of a comparison.

    Raises ConfigError for a file that cannot be read, is not YAML, or whose settings are unknown or wrong.
    """
    document = parse_yaml(read_settings(path, "ready comparisons are in configs/comparisons/"), str(path))
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
        raise all_problems(error, ComparisonSettings, lines, str(path)) from error
    arms = tuple(arm_of_settings(name, given or {}) for name, given in settings.arms.items())
    if not arms:
        raise ConfigError(f"{path}: arms: there is none; name two or more")
    return Given(
        base=os.path.normpath(path.parent / settings.base),
        overrides=(
            f"name={_name_of(path.stem)}",
            *as_overrides(settings.settings, f"{path}: settings"),
        ),
        arms=arms,
        baseline=settings.baseline,
        search=settings.search,
    )


def _name_of(stem: str) -> str:
    """The name of a comparison whose file is called so, in characters that names of runs may have."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", stem)[:64].strip("-.") or "comparison"


def draw_trials(arm: Arm, budget: int, seed: int) -> list[tuple[str, ...]]:
    """The settings that an arm tries, in this order: `budget` of all combinations of its values, drawn by the
    seed. Raises ConfigError if there are fewer combinations."""
    combinations = list(itertools.product(*arm.search))
    if len(combinations) < budget:
        raise ConfigError(
            f"arm {arm.name}: search: its values make {len(combinations)} combinations, and each arm tries "
            f"{budget}; give it more values, or lower search.budget for all arms"
        )
    return random.Random(derive_seed(seed, "search", arm.name)).sample(combinations, budget)


def refuse_unequal_search(search: SearchSettings | None, arms: Sequence[Arm]) -> None:
    """Raise ConfigError unless all arms search, or none, as the file says."""
    searching = [arm.name for arm in arms if arm.search]
    if search is None and searching:
        raise ConfigError(
            f"arm {searching[0]}: search: there is no budget; "
            "add search: {budget: N, seeds: S} beside arms:"
        )
    without = [arm.name for arm in arms if not arm.search]
    if search is not None and without:
        raise ConfigError(
            f"arm {without[0]}: no search, but a fair comparison gives each arm the same number of trials "
            f"({search.budget}); add search: {{optimizer.learning_rate: [...]}} to the arm"
        )
