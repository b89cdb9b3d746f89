"""The result of a comparison, put together from the curves of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from erl_pipeline.comparison.budgets import Budgets
from erl_pipeline.comparison.design import ComparedRun, Design
from erl_pipeline.comparison.differences import ArmDifference, arm_differences
from erl_pipeline.comparison.measures import RunMeasures, measure
from erl_pipeline.comparison.streams import StreamSummary, summarize
from erl_pipeline.comparison.training import Thirds, TrainingFigures, thirds
from erl_pipeline.config.plugins.installed import plugins
from erl_pipeline.evaluation.history import CurvePoint
from erl_pipeline.runs.columns import method_columns

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
    """The results of an arm: curves and figures by seed, numbers of training, and streamed evaluations.
    Failed runs are left out."""

    curves: Mapping[int, list[CurvePoint]]
    measures: Mapping[int, RunMeasures]
    training: Mapping[str, TrainingNumber]
    streams: Sequence[StreamSummary]


@dataclass(frozen=True)
class Failure:
    """A run that failed, and why."""

    run: str
    arm: str
    seed: int
    message: str


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

    @property
    def comparisons(self) -> int:
        """How many differences there are in all tables."""
        return sum(len(rows) for rows in self.differences.values())


def make_result(
    design: Design,
    budgets: Budgets,
    curves: Mapping[str, Mapping[int, list[CurvePoint]]],
    training: Mapping[str, Mapping[int, TrainingFigures]],
    failures: tuple[Failure, ...],
) -> Result:
    """Put the result together. `curves` maps arm -> seed -> curve, `training` arm -> seed -> figures."""
    of_arm = {run.arm: run for run in design.runs}
    arms = {
        arm: ArmResult(
            by_seed,
            {seed: measure(curve, budgets) for seed, curve in by_seed.items()},
            _training(of_arm[arm], training[arm], of_arm[arm].iterations),
            summarize(figures.streams for figures in training[arm].values()),
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
        differences=arm_differences({arm: each.measures for arm, each in arms.items()}, design.baseline),
        failures=failures,
    )


def _training(
    run: ComparedRun, figures: Mapping[int, TrainingFigures], iterations: int
) -> dict[str, TrainingNumber]:
    found: dict[str, TrainingNumber] = {}
    roles = plugins("methods")[run.config.method.type].value.roles(run.config.method)
    for role in roles:
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
