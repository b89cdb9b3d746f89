"""Intervals that include the choice of seeds and of test tasks: by resampling both."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from erl_pipeline.comparison.measures import MEASURES, Budgets, Curve, Measure, measure

Outcomes = Mapping[str, Sequence[bool]]
"""Test task -> whether its greedy attempt succeeded, at each point of a run's curve."""
ByTask = Mapping[str, float]
"""Test task -> its part of a figure: the figure of a run is their mean."""
Interval = tuple[float, float]
Numbers = NDArray[np.float64]

RESAMPLES = 10_000
_SEED = 0
_ENDS = (0.025, 0.975)


def figures_by_task(curve: Curve, outcomes: Outcomes, budgets: Budgets) -> dict[Measure, ByTask]:
    """Each measure of a run for each single task, as if the run had been tested on this task alone.

    All measures are linear in the successes along the curve, so that the mean over tasks is the run's own
    figure. Measures that the run does not have are left out. Raises ValueError when the run ends before a
    budget.
    """
    # What a success at one point of the curve alone adds to each measure.
    alone = [
        measure([replace(each, success=float(each is point)) for each in curve], budgets) for point in curve
    ]
    return {
        name: {
            task: float(sum(getattr(part, name) for part, solved in zip(alone, each, strict=True) if solved))
            for task, each in outcomes.items()
        }
        for name in MEASURES
        if all(getattr(part, name) is not None for part in alone)
    }


def seed_and_task_interval(seeds: Sequence[ByTask]) -> Interval | None:
    """The 95 % percentile interval of a mean over seeds and test tasks, by the bootstrap.

    Seeds are drawn with replacement, and test tasks. If all seeds share at least half of their tasks, those
    are drawn once for all of them: a board that is easy is easy for every seed, and more seeds do not make it
    another one. The others are left out then, such as tasks that were not scored with one of the seeds. Else
    tasks are drawn for each seed that was drawn. The draws are the same in every call.

    None for fewer than two seeds, or a seed without tasks.
    """
    if len(seeds) < 2 or not all(seeds):
        return None
    shared = [task for task in seeds[0] if all(task in each for each in seeds)]
    if 2 * len(shared) >= max(map(len, seeds)):
        means = _crossed(np.array([[each[task] for task in shared] for each in seeds]))
    else:
        means = _nested([np.array(list(each.values())) for each in seeds])
    low, high = np.quantile(means, _ENDS)
    return float(low), float(high)


def paired(ours: ByTask, theirs: ByTask) -> dict[str, float]:
    """Task by task the first less the second, for the tasks of both."""
    return {task: value - theirs[task] for task, value in ours.items() if task in theirs}


def _crossed(values: Numbers) -> Numbers:
    """Means of resamples of a table with a row for each seed and a column for each task."""
    rows, columns = _crossed_shares(*values.shape)
    means: Numbers = np.einsum("ij,ij->i", rows @ values, columns)
    return means


@lru_cache(maxsize=2)  # A comparison has one shape, or one more where a run failed.
def _crossed_shares(rows: int, columns: int) -> tuple[Numbers, Numbers]:
    draws = np.random.default_rng(_SEED)
    return _shares(draws, rows, RESAMPLES), _shares(draws, columns, RESAMPLES)


def _nested(values: Sequence[Numbers]) -> Numbers:
    """Means of resamples in which each drawn seed has tasks of its own."""
    draws = np.random.default_rng(_SEED)
    total = np.zeros(RESAMPLES)
    for _ in values:
        drawn = draws.integers(len(values), size=RESAMPLES)
        for number, tasks in enumerate(values):
            here = drawn == number
            total[here] += _shares(draws, len(tasks), int(here.sum())) @ tasks
    return total / len(values)


def _shares(draws: np.random.Generator, count: int, resamples: int) -> Numbers:
    """For each resample the share of each of `count` things among as many draws with replacement."""
    drawn: Numbers = draws.multinomial(count, [1 / count] * count, size=resamples) / count
    return drawn
