"""The design of a comparison: its arms and seeds, and a run for each pair of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from erl_pipeline.comparison.arms import Arm, arm_of_method, load_arm
from erl_pipeline.comparison.comparison_file import Given, read_comparison
from erl_pipeline.comparison.equal_steps import iterations_for_the_same_tasks, levelled
from erl_pipeline.config.loading.load import change_config, load_config
from erl_pipeline.config.plugins.installed import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.differences import recipe_differences
from erl_pipeline.plan.plan import POLICY, Place
from erl_pipeline.plan.sources import Sources, read_sources
from erl_pipeline.runs.on_test import plan_on_test
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.stages.evaluation.evaluate_on_test import TEST_TASKS, no_test_split
from storage.errors import ConfigError, InputError
from storage.upkeep.rules import parse_rule

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
    more = levelled(configs, tasks, iterations)
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
        test = plan_on_test(config, sources[name], plan).by_place[Place(0, TEST_TASKS.name, "")]
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
