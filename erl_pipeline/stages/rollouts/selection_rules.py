"""How tasks are drawn by what is known of them, and why each was drawn."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from erl_pipeline.config.rollouts import ByDifficultySelection, EasyToHardSelection
from erl_pipeline.environments.interface import Task
from erl_pipeline.stages.rollouts.task_results import Results

Reason = Literal["new", "expected_success", "window"]
"""`new`: never tried, and drawn uniformly among those; `expected_success`: drawn by weight among those that
were tried; `window`: in the window from easy to hard."""


@dataclass(frozen=True)
class DrawnTask:
    """A task of an iteration. `weight` is its weight in the draw, `probability` its chance in the first
    single draw among the same tasks."""

    task: Task
    weight: float
    probability: float
    reason: Reason


def difficulty_weight(expected: float, selection: ByDifficultySelection) -> float:
    """exp(-(expected - target)^2 / (2 width^2)): 1 at the target."""
    return math.exp(_log_weight(expected, selection))


def draw_by_difficulty(
    tasks: Sequence[Task],
    count: int,
    expected: Mapping[str, float],
    results: Results,
    selection: ByDifficultySelection,
    chance: random.Random,
) -> list[DrawnTask]:
    """`count` different tasks: the share of new ones, rounded by chance, then tried ones by weight. Where one
    kind lacks tasks, the other fills in."""
    new = [task for task in tasks if task.task_id not in results]
    tried = [task for task in tasks if task.task_id in results]
    wanted = math.floor(selection.new * count + chance.random())
    of_new = max(min(wanted, len(new)), count - len(tried))
    logs = [_log_weight(expected[task.task_id], selection) for task in tried]
    return [
        *_drawn(new, [0.0] * len(new), of_new, "new", chance),
        *_drawn(tried, logs, count - of_new, "expected_success", chance),
    ]


def draw_from_window(
    tasks: Sequence[Task],
    count: int,
    difficulty: Mapping[str, float],
    selection: EasyToHardSelection,
    iteration: int,
    chance: random.Random,
) -> list[DrawnTask]:
    """`count` different tasks of the window of an iteration (from 1). The seed orders tasks that are equally
    hard."""
    shuffled = chance.sample(list(tasks), len(tasks))
    ordered = sorted(shuffled, key=lambda task: difficulty[task.task_id])
    first, last = window_of(len(tasks), count, selection, iteration)
    within = ordered[first:last]
    return _drawn(within, [0.0] * len(within), count, "window", chance)


def window_of(tasks: int, count: int, selection: EasyToHardSelection, iteration: int) -> tuple[int, int]:
    """Where the window lies in the order from easy to hard: its first index, and the one after its last. It
    moves in equal steps from the beginning, in iteration 1, to the end, in iteration `over`."""
    size = min(tasks, max(count, math.ceil(round(selection.window * tasks, 9))))
    steps = min(iteration - 1, selection.over - 1)
    first = (tasks - size) * steps // (selection.over - 1)
    return first, first + size


def _log_weight(expected: float, selection: ByDifficultySelection) -> float:
    return -((expected - selection.target) ** 2) / (2 * selection.width**2)


def _drawn(
    tasks: Sequence[Task], logs: Sequence[float], count: int, reason: Reason, chance: random.Random
) -> list[DrawnTask]:
    """`count` tasks, drawn one after the other without replacement, each with a chance proportional to its
    weight w: those whose exponential clocks of rate w ring first (Efraimidis and Spirakis 2006). Computed in
    logarithms, since a weight may be too small for a float."""
    if not count:
        return []
    # The logarithm of -ln(u) / w; 1 - random() is in (0, 1].
    rings = [math.log(-math.log(1.0 - chance.random()) or 5e-324) - log for log in logs]
    largest = max(logs)
    total = sum(math.exp(log - largest) for log in logs)
    first = sorted(range(len(tasks)), key=lambda place: (rings[place], place))[:count]
    return [
        DrawnTask(tasks[place], math.exp(logs[place]), math.exp(logs[place] - largest) / total, reason)
        for place in first
    ]
