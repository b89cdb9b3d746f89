"""What a comparison trains: every run of it, and before them those of a search for settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from erl_pipeline.comparison.arms import (
    Arm,
    Given,
    SearchSettings,
    arm_of_method,
    draw_trials,
    load_arm,
    read_comparison,
    refuse_unequal_search,
)
from erl_pipeline.comparison.equal_steps import (
    iterations_for_the_same_tasks,
    planned_steps,
    refuse_many_passes,
    with_equal_steps,
)
from erl_pipeline.config.loading import change_config, load_config
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.forecast import recipe_differences
from erl_pipeline.plan.plan import POLICY, StageKey
from erl_pipeline.plan.sources import Sources, read_sources
from erl_pipeline.runs.on_request import plan_on_test
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.stages.evaluation.evaluate import TEST_TASKS, no_test_split
from storage.artifacts.recipe import digest
from storage.errors import ConfigError, InputError
from storage.upkeep.rules import parse_rule

LEAST_SEEDS = 2
FIRST_SEARCH_SEED = 1000
"""How far the seeds of trials are from those of the comparison, so that no result profits from the luck of
the run by which its settings were chosen."""

_LONGEST_PART = 48
"""Characters of a run's name before its setting and seed, since a name may have 64."""


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
class Trial:
    """Settings that an arm tries on held-out tasks, on top of its own, and a run for each seed."""

    arm: str
    settings: tuple[str, ...]
    runs: tuple[ComparedRun, ...]


@dataclass(frozen=True)
class Design:
    """A whole comparison. `runs` has all arms of a seed before the next seed. `iterations` are those of an
    arm that draws as many tasks in an iteration as the base. `trials` come before them, if there are any."""

    name: str
    base: str
    arms: tuple[Arm, ...]
    baseline: str
    seeds: tuple[int, ...]
    iterations: int
    runs: tuple[ComparedRun, ...]
    search: SearchSettings | None = None
    trials: tuple[Trial, ...] = ()


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
            are not evaluated on the same test tasks, cannot take equal steps, or do not search alike.
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
    refuse_unequal_search(given.search, arms)
    _require_test_split(base)
    configs = {arm.name: load_arm(arm, given.base, common) for arm in arms}
    tasks, iterations = base.rollouts.tasks_per_iteration, iterations or base.iterations
    more = with_equal_steps(configs, tasks, iterations)
    arms = tuple(replace(arm, overrides=(*arm.overrides, *more[arm.name])) for arm in arms)
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
                    f"name={_run_name(base, arm)}.seed{seed}",
                    f"seed={seed}",
                    *_keeping_what_is_tested(configs[arm.name]),
                ],
            ),
            sources[arm.name],
        )
        for seed in numbers
        for arm in arms
    )
    trials = () if given.search is None else _trials(base, arms, runs, given.search)
    _require_equal_trials(trials, configs, baseline)
    return Design(base.name, given.base, arms, baseline, numbers, iterations, runs, given.search, trials)


def _run_name(base: RunConfig, arm: Arm, search: bool = False) -> str:
    """What the names of an arm's runs, or of those of its trials, begin with. Raises ConfigError."""
    name = f"{base.name}.{arm.run_part}{'.search' * search}"
    if len(name) > _LONGEST_PART:
        raise ConfigError(
            f"arm {arm.name}: the names of its runs would begin with {name}, {len(name)} characters; allowed "
            f"are {_LONGEST_PART}. Give the comparison a shorter name: --set name=NAME"
        )
    return name


def _trials(
    base: RunConfig, arms: Sequence[Arm], runs: Sequence[ComparedRun], search: SearchSettings
) -> tuple[Trial, ...]:
    first = {run.arm: run for run in reversed(runs)}
    seeds = range(base.seed + FIRST_SEARCH_SEED, base.seed + FIRST_SEARCH_SEED + search.seeds)
    trials = []
    for arm in arms:
        for settings in draw_trials(arm, search.budget, base.seed):
            # The name depends on the settings alone, so that a wider search finds the runs of this one.
            name = f"{_run_name(base, arm, search=True)}-{digest(sorted(settings))[:6]}"
            config = _with_settings(first[arm.name], settings)
            sources = read_sources(config)
            of_seed = {seed: [f"name={name}.seed{seed}", f"seed={seed}"] for seed in seeds}
            trials.append(
                Trial(
                    arm.name,
                    settings,
                    tuple(
                        replace(
                            first[arm.name], seed=seed, config=change_config(config, given), sources=sources
                        )
                        for seed, given in of_seed.items()
                    ),
                )
            )
    return tuple(trials)


def _with_settings(run: ComparedRun, settings: Sequence[str]) -> RunConfig:
    try:
        return change_config(run.config, settings)
    except ConfigError as error:
        raise ConfigError(f"arm {run.arm}: search: {error}") from error


def _require_equal_trials(trials: Sequence[Trial], configs: Mapping[str, RunConfig], baseline: str) -> None:
    """Raise ConfigError if a trial has another start, other test tasks or other steps than its arm."""
    tried = {f"{each.arm} with {', '.join(each.settings)}": each for each in trials}
    for name, trial in tried.items():
        wanted, planned = planned_steps(configs[trial.arm]), planned_steps(trial.runs[0].config)
        refuse_many_passes(name, planned, trial.runs[0].iterations)
        if (planned.tasks, planned.total) != (wanted.tasks, wanted.total):
            raise ConfigError(
                f"arm {name}: search: {planned.total} optimizer steps for {planned.tasks} tasks instead of "
                f"{wanted.total} for {wanted.tasks}; search settings that change neither, since all arms "
                "take equal steps"
            )
    # Test tasks may depend on the seed, so trials are looked at with that of the comparison.
    of_trials = {
        name: change_config(each.runs[0].config, [f"seed={configs[baseline].seed}"])
        for name, each in tried.items()
    }
    sources = {name: each.runs[0].sources for name, each in tried.items()}
    _require_one_start(
        {baseline: configs[baseline], **of_trials},
        {baseline: read_sources(configs[baseline]), **sources},
        baseline,
    )


def with_chosen(design: Design, chosen: Mapping[str, Trial]) -> Design:
    """The design with the settings that a search has chosen; `chosen` maps each arm to its best trial."""
    return replace(
        design,
        arms=tuple(
            replace(arm, overrides=(*arm.overrides, *chosen[arm.name].settings)) for arm in design.arms
        ),
        runs=tuple(
            replace(
                run,
                config=change_config(run.config, chosen[run.arm].settings),
                sources=chosen[run.arm].runs[0].sources,
            )
            for run in design.runs
        ),
    )


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
    """Raise ConfigError if an arm's first policy or test tasks are not those of the baseline, or if it judges
    success otherwise."""
    for name, config in configs.items():
        for setting in ("success_threshold", "failed"):
            own, wanted = getattr(config.rollouts, setting), getattr(configs[baseline].rollouts, setting)
            if own != wanted:
                raise ConfigError(
                    f"arm {name} has rollouts.{setting}: {own}, which says what counts as success, and "
                    f"{baseline} {wanted}, so they cannot be compared"
                )
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
