"""What a comparison trains: its file, its arms, and every run of it."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from erl_pipeline.comparison.equal_steps import iterations_for_the_same_tasks, with_equal_steps
from erl_pipeline.config.base import Settings
from erl_pipeline.config.explain import explain, parse_yaml
from erl_pipeline.config.loading import change_config, load_config
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.forecast import recipe_differences
from erl_pipeline.plan.plan import POLICY, StageKey
from erl_pipeline.plan.sources import Sources, read_sources
from erl_pipeline.runs.on_request import plan_on_test
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.stages.evaluation.evaluate import TEST_TASKS, no_test_split
from storage.errors import ConfigError, InputError
from storage.upkeep.rules import parse_rule

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


LEAST_SEEDS = 2


@dataclass(frozen=True)
class ComparedRun:
    """The run of an arm with a seed, and the sources for its plan. `iterations` is how far it goes before the
    budgets are known."""

    arm: str
    seed: int
    iterations: int
    config: RunConfig
    sources: Sources


@dataclass(frozen=True)
class Design:
    """A whole comparison. `runs` has all arms of a seed before the next seed. `iterations` are those of an
    arm that draws as many tasks in an iteration as the base."""

    name: str
    base: str
    arms: tuple[Arm, ...]
    baseline: str
    seeds: tuple[int, ...]
    iterations: int
    runs: tuple[ComparedRun, ...]


def make_design(
    path: Path,
    methods: Sequence[str],
    seeds: int,
    iterations: int | None = None,
    overrides: Sequence[str] = (),
    threads: int = 1,
) -> Design:
    """Make the design of a comparison, and check it before anything is trained.

    Args:
        path: a comparison file, or a run configuration.
        methods: names of arms; empty for all of the file.
        seeds: how many seeds: that of the base configuration and those after it.
        iterations: default: those of the base configuration.
        overrides: `dotted.key=value` each, for all arms; they take precedence over the files, but not over
            the arms' own settings.
        threads: CPU threads of each run.

    Raises:
        InputError: fewer than two seeds or arms, an arm twice, or no test split.
        ConfigError: an unknown arm, settings that are refused, arms that do not start from the same policy,
            are not evaluated on the same test tasks, or cannot take equal steps.
    """
    if seeds < LEAST_SEEDS:
        raise InputError(
            f"--seeds {seeds}: allowed are {LEAST_SEEDS} and more; one seed says nothing about the spread"
        )
    given = read_comparison(path)
    common = [
        *given.overrides,
        *overrides,
        "runner={type: in_process}",
        f"resources.threads={threads}",
    ]
    base = load_config(given.base, common)
    arms, baseline = _chosen(given, methods, base)
    _require_test_split(base)
    configs = {arm.name: load_arm(arm, given.base, common) for arm in arms}
    tasks, iterations = base.rollouts.tasks_per_iteration, iterations or base.iterations
    more = with_equal_steps(configs, tasks, iterations)
    arms = tuple(Arm(arm.name, (*arm.overrides, *more[arm.name])) for arm in arms)
    configs = {arm.name: load_arm(arm, given.base, common) for arm in arms}
    sources = {name: read_sources(config) for name, config in configs.items()}
    _require_one_start(configs, sources, baseline)
    numbers = tuple(range(base.seed, base.seed + seeds))
    runs = tuple(
        ComparedRun(
            arm.name,
            seed,
            iterations_for_the_same_tasks(iterations, tasks, configs[arm.name]),
            change_config(
                configs[arm.name],
                [
                    f"name={base.name}.{arm.run_part}.seed{seed}",
                    f"seed={seed}",
                    *_keeping_what_is_tested(configs[arm.name]),
                ],
            ),
            sources[arm.name],
        )
        for seed in numbers
        for arm in arms
    )
    return Design(base.name, given.base, arms, baseline, numbers, iterations, runs)


def _keeping_what_is_tested(config: RunConfig) -> list[str]:
    """Settings with which a run with retention keeps the weights that are evaluated on the test tasks."""
    if config.retention.checkpoints is None:
        return []
    last = parse_rule(config.retention.checkpoints).last
    return [f"retention.checkpoints={last},every:{config.evaluation.every}"]


def _chosen(given: Given, methods: Sequence[str], base: RunConfig) -> tuple[tuple[Arm, ...], str]:
    """The chosen arms and the baseline's name. Names are looked up in the file first, then as methods."""
    known = {arm.name: arm for arm in given.arms}
    if not methods and not known:
        raise InputError(
            f"{given.base} names no arms; say which with --methods, such as --methods erl,rlvr, or give a "
            "comparison file"
        )
    names = list(methods) or list(known)
    arms = tuple(known[name] if name in known else arm_of_method(name, base) for name in names)
    parts = [arm.run_part for arm in arms]
    if twice := sorted({part for part in parts if parts.count(part) > 1}):
        raise InputError(f"--methods: {', '.join(twice)} is named twice")
    if len(arms) < 2:
        raise InputError(f"--methods {','.join(names)}: a comparison needs two arms or more")
    baseline = given.baseline if given.baseline in names else names[0]
    if given.baseline is not None and given.baseline not in names and not methods:
        raise ConfigError(f"baseline: {given.baseline}; allowed: {', '.join(names)}")
    return arms, baseline


def _require_test_split(base: RunConfig) -> None:
    plugin = plugins("environments")[base.environment.type].value
    if not plugin.splits.test_tasks(base.environment, base.seed):
        raise InputError(no_test_split(base.environment.type, plugin.splits.test_needs))


def _require_one_start(
    configs: Mapping[str, RunConfig], sources: Mapping[str, Sources], baseline: str
) -> None:
    """Raise ConfigError if an arm's first policy or test tasks are not those of the baseline."""
    starts = {}
    for name, config in configs.items():
        plan = plan_run(config, sources[name], iterations=0)
        test = plan_on_test(config, sources[name], plan).by_place[StageKey(0, TEST_TASKS.name, "")]
        starts[name] = {
            "starts from another policy": plan.by_id[plan.states[0].models[POLICY]],
            "is evaluated on other test tasks": test,
        }
    for name, parts in starts.items():
        for what, node in parts.items():
            reference = starts[baseline][what]
            if node.artifact_id != reference.artifact_id:
                found = "; ".join(recipe_differences(reference.recipe, node.recipe)[:3])
                raise ConfigError(f"arm {name} {what} than {baseline}, so they cannot be compared: {found}")
