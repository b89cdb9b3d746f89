"""The result of a comparison: the figures of its arms, put together from their runs, and their
differences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from erl_pipeline.comparison.bootstrap import (
    ByTask,
    Interval,
    Outcomes,
    figures_by_task,
    paired,
    seed_and_task_interval,
)
from erl_pipeline.comparison.design import ComparedRun, Design
from erl_pipeline.comparison.measures import (
    MEASURES,
    Budgets,
    Measure,
    RunMeasures,
    SeedDifference,
    holm,
    measure,
    seed_difference,
)
from erl_pipeline.comparison.runs import Thirds, TrainingFigures, thirds
from erl_pipeline.comparison.search import Search
from erl_pipeline.config.plugins import plugins
from erl_pipeline.evaluation.history import CurvePoint
from erl_pipeline.runs.config import method_columns
from storage.runs.split_openings import Opening, SplitUse


@dataclass(frozen=True)
class ArmDifference:
    """The baseline less an arm in one measure, over the seeds that both have. `over_seeds_and_tasks` is the
    bootstrap's interval; None with one seed or without the outcomes of single tasks.

    `p_in_table` is the p value corrected for all arms in this measure, `p_in_all` for all arms in all
    measures; None with one seed.
    """

    arm: str
    measure: str
    seeds: tuple[int, ...]
    difference: SeedDifference
    p_in_table: float | None
    p_in_all: float | None
    over_seeds_and_tasks: Interval | None = None


FiguresByTask = Mapping[str, Mapping[int, Mapping[Measure, ByTask]]]
"""Arm -> seed -> measure -> the figures of single test tasks."""


def arm_differences(
    measures: Mapping[str, Mapping[int, RunMeasures]], baseline: str, by_task: FiguresByTask | None = None
) -> dict[str, list[ArmDifference]]:
    """Measure -> the baseline less each other arm. `measures` maps arm -> seed -> figures.

    Arms that share no seed with the baseline are left out, and so are those without this measure.
    """
    pairs: list[tuple[str, str, tuple[int, ...], SeedDifference]] = []
    ours = measures.get(baseline, {})
    for name in MEASURES:
        for arm, theirs in measures.items():
            both = {
                seed: (getattr(ours[seed], name), getattr(theirs[seed], name))
                for seed in ours
                if seed in theirs
            }
            seeds = tuple(seed for seed, figures in both.items() if None not in figures)
            if arm == baseline or not seeds:
                continue
            figures = zip(*(both[seed] for seed in seeds), strict=True)
            pairs.append((name, arm, seeds, seed_difference(*figures)))
    everywhere = _corrected([pair[3] for pair in pairs])
    found: dict[str, list[ArmDifference]] = {}
    for name in MEASURES:
        of_measure = [number for number, pair in enumerate(pairs) if pair[0] == name]
        in_table = _corrected([pairs[number][3] for number in of_measure])
        found[name] = [
            ArmDifference(
                arm,
                name,
                seeds,
                difference,
                p_in_table,
                everywhere[number],
                _interval(by_task, name, arm, seeds, baseline),
            )
            for number, p_in_table in zip(of_measure, in_table, strict=True)
            for _, arm, seeds, difference in [pairs[number]]
        ]
    return found


def _interval(
    by_task: FiguresByTask | None, name: Measure, arm: str, seeds: Sequence[int], less_than: str | None = None
) -> Interval | None:
    """That of an arm in a measure, or of what it lacks to another arm; None without the measure."""
    if by_task is None or any(name not in by_task[arm][seed] for seed in seeds):
        return None
    of_arm = [by_task[arm][seed][name] for seed in seeds]
    if less_than is not None:
        ours = [by_task[less_than][seed][name] for seed in seeds]
        of_arm = [paired(each, theirs) for each, theirs in zip(ours, of_arm, strict=True)]
    return seed_and_task_interval(of_arm)


def _corrected(differences: list[SeedDifference]) -> list[float | None]:
    """Holm's p values; None for differences without a p value."""
    adjusted = iter(holm([each.p_value for each in differences if each.p_value is not None]))
    return [None if each.p_value is None else next(adjusted) for each in differences]


REWARD = "reward"


@dataclass(frozen=True)
class TrainingNumber:
    """A number of an arm's training, early and late, and its curve for each seed."""

    label: str
    meaning: str
    summary: Thirds
    by_seed: Mapping[int, Mapping[int, float]]


@dataclass(frozen=True)
class ArmResult:
    """The results of an arm: curves and figures by seed, and numbers of training; failed runs are left
    out."""

    curves: Mapping[int, list[CurvePoint]]
    measures: Mapping[int, RunMeasures]
    training: Mapping[str, TrainingNumber]
    over_seeds_and_tasks: Mapping[Measure, Interval | None] = field(default_factory=dict)
    """The interval of each measure's mean by the bootstrap."""


@dataclass(frozen=True)
class Failure:
    """A run that failed, and why."""

    run: str
    arm: str
    seed: int
    message: str


@dataclass(frozen=True)
class SplitHistory:
    """How this comparison used its test tasks, and which others had opened them before."""

    use: SplitUse
    before: tuple[Opening, ...]


@dataclass(frozen=True)
class Result:
    """A whole comparison. `differences` are by measure. An arm without a successful run is only in
    `failures`."""

    design: Design
    budgets: Budgets
    test_tasks: int
    arms: Mapping[str, ArmResult]
    differences: Mapping[str, list[ArmDifference]]
    failures: tuple[Failure, ...]
    split: SplitHistory | None = None
    search: Search | None = None
    ended_early: tuple[str, ...] = ()
    """Runs that generate so little that they were ended before the token budget. They count as if their last
    success stayed."""

    @property
    def comparisons(self) -> int:
        """How many differences there are in all tables."""
        return sum(len(rows) for rows in self.differences.values())


def make_result(
    design: Design,
    budgets: Budgets,
    curves: Mapping[str, Mapping[int, list[CurvePoint]]],
    training: Mapping[str, Mapping[int, TrainingFigures]],
    outcomes: Mapping[str, Mapping[int, Outcomes]],
    failures: tuple[Failure, ...],
    split: SplitHistory,
    search: Search | None,
    ended_early: tuple[str, ...],
) -> Result:
    """Put the result together. `curves` maps arm -> seed -> curve, `training` arm -> seed -> figures,
    `outcomes` arm -> seed -> those of single test tasks."""
    of_arm = {run.arm: run for run in design.runs}
    by_task = {
        arm: {seed: figures_by_task(curve, outcomes[arm][seed], budgets) for seed, curve in by_seed.items()}
        for arm, by_seed in curves.items()
    }
    arms = {
        arm: ArmResult(
            by_seed,
            {seed: measure(curve, budgets) for seed, curve in by_seed.items()},
            _training(of_arm[arm], training[arm], of_arm[arm].iterations),
            {name: _interval(by_task, name, arm, list(by_seed)) for name in MEASURES},
        )
        for arm, by_seed in curves.items()
    }
    first = design.runs[0]
    plugin = plugins("environments")[first.config.environment.type].value
    return Result(
        design=design,
        budgets=budgets,
        test_tasks=len(plugin.splits.test_tasks(first.config.environment, first.seed)),
        arms=arms,
        differences=arm_differences(
            {arm: each.measures for arm, each in arms.items()}, design.baseline, by_task
        ),
        failures=failures,
        split=split,
        search=search,
        ended_early=ended_early,
    )


def _training(
    run: ComparedRun, figures: Mapping[int, TrainingFigures], iterations: int
) -> dict[str, TrainingNumber]:
    found: dict[str, TrainingNumber] = {}
    for role in run.config.roles:
        by_seed = {seed: each.rewards[role] for seed, each in figures.items() if role in each.rewards}
        words = role.replace("_", " ")
        _add(
            found, f"{REWARD}/{role}", f"reward, {words}", f"mean reward of each {words}", by_seed, iterations
        )
    for column in method_columns(run.config):
        by_seed = {
            seed: each.numbers[column.name] for seed, each in figures.items() if each.numbers.get(column.name)
        }
        _add(found, column.name, column.title or column.label, column.meaning, by_seed, iterations)
    return found


def _add(
    found: dict[str, TrainingNumber],
    name: str,
    label: str,
    meaning: str,
    by_seed: Mapping[int, Mapping[int, float]],
    iterations: int,
) -> None:
    if by_seed:
        summary = thirds(list(by_seed.values()), iterations)
        found[name] = TrainingNumber(label, meaning, summary, by_seed)
