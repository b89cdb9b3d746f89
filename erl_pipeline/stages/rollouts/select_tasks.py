"""The stage that draws an iteration's tasks by how hard they are; uniform selection has no such stage."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from pydantic import SerializeAsAny

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.rollouts import (
    ByDifficultySelection,
    EasyToHardSelection,
    ResultSettings,
    SelectionConfig,
    UniformSelection,
    results_of,
)
from erl_pipeline.environments.interface import Task
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.stages.names import TASKS, TRAINING, trajectory_files
from erl_pipeline.stages.rollouts import task_results
from erl_pipeline.stages.tasks import draw_tasks
from erl_pipeline.stages.tasks.prepare_tasks import environment_identity, read_tasks, read_weights
from storage.artifacts.recipe import derive_seed
from storage.errors import InputError

if TYPE_CHECKING:
    from erl_pipeline.plan.plan import RunState
    from erl_pipeline.plan.planner import Planner
    from storage.tables.parquet import TableFormat

SELECTION_FILE = "selection.parquet"

_BEFORE = "before"
"""The input through which a selection gets the previous one."""
_ROLLOUTS = "rollouts-"
"""Prefix of the inputs with rollouts that the previous selection did not see; the iteration follows."""
_SEEN = "known_iterations"
"""Counter: the last iteration whose results are known."""


class SelectSettings(Settings):
    """What a selection depends on, besides the tasks and what is known of them."""

    selection: SelectionConfig
    tasks_per_iteration: int
    group_size: int
    environment: SerializeAsAny[PluginSettings] | None
    """The environment that is asked how hard tasks are; None where earlier results decide it."""


def plan_selection(
    planner: Planner, state: RunState, iteration: int, rollouts_of: Callable[[int], str | None]
) -> str | None:
    """Plan the selection of the tasks that an iteration plays; None where selection is uniform.

    What is known of tasks comes from the rollouts of the iterations that trained the acting checkpoint, so
    that with a lag nothing waits for rollouts that it does not need. They are read once: the previous
    selection passes on what it knew. `rollouts_of`: the rollouts of an earlier iteration, where they are
    planned.
    """
    config = planner.config
    selection = config.rollouts.selection
    if isinstance(selection, UniformSelection):
        return None
    inputs = {TASKS: state.tasks}
    reads_results = results_of(selection) is not None
    if reads_results:
        before = planner.planned(SELECT_TASKS, iteration - 1)
        newest = iteration - 1 - config.pipeline.lag
        first = max(1, min(_newest_read(planner, before) + 1, newest))
        for number in range(first, newest + 1):
            rollouts = rollouts_of(number)
            if rollouts is not None:
                inputs[f"{_ROLLOUTS}{number:06d}"] = rollouts
        if before is not None:
            inputs[_BEFORE] = before
    settings = SelectSettings(
        selection=selection,
        tasks_per_iteration=config.rollouts.drawn_tasks,
        group_size=config.rollouts.group_size,
        environment=None if reads_results else environment_identity(config),
    )
    return planner.add(
        SELECT_TASKS,
        inputs,
        iteration=iteration,
        settings=planner.shared(settings),
        seed=config.seed,
        index={"iteration": iteration},
    )


def _newest_read(planner: Planner, selection: str | None) -> int:
    """The newest iteration whose rollouts a selection, or one before it, has read; 0 for none. In a branch
    those before may have read none, or not as far as its own settings ask for."""
    for node in reversed(planner.nodes):
        if node.artifact_id == selection:
            read = [name for name in node.recipe.inputs if name.startswith(_ROLLOUTS)]
            if read:
                return max(int(name.removeprefix(_ROLLOUTS)) for name in read)
            selection = node.recipe.inputs.get(_BEFORE)
    return 0


def _compute(call: StageCall[SelectSettings]) -> StageResult:
    """Draw the tasks of each part of a mixture, or of the one environment; write them, and why each was
    drawn."""
    settings, iteration = call.settings, call.index["iteration"]
    tasks = read_tasks(call.inputs[TASKS], TRAINING, call.resources)
    weights = read_weights(call.inputs[TASKS])
    how = results_of(settings.selection)
    known, seen = ({}, 0) if how is None else _known(call, how)
    measures = _Measures(
        results=known,
        expected={} if how is None else task_results.expected_success(tasks, known, how),
        difficulty={} if how is not None else _difficulty(settings.environment, tasks),
    )
    count = settings.tasks_per_iteration
    counts = draw_tasks.part_counts(weights, count, call.seed, iteration) if weights else {"": count}
    drawn: dict[str, list[task_results.DrawnTask]] = {}
    for name, of_part in draw_tasks.tasks_by_part(tasks, weights).items():
        draw_tasks.require_enough(of_part, counts[name], name)
        chance = random.Random(derive_seed(call.seed, SELECT_TASKS.name, iteration, name))
        if isinstance(settings.selection, ByDifficultySelection):
            drawn[name] = task_results.draw_by_difficulty(
                of_part, counts[name], measures.expected, known, settings.selection, chance
            )
        else:
            assert isinstance(settings.selection, EasyToHardSelection)
            drawn[name] = task_results.draw_from_window(
                of_part, counts[name], measures.hardness(), settings.selection, iteration, chance
            )
    row = draw_tasks.interleaved({name: [each.task for each in of_part] for name, of_part in drawn.items()})
    by_id = {each.task.task_id: (name, each) for name, of_part in drawn.items() for each in of_part}
    written = {
        draw_tasks.SAMPLES_FILE: draw_tasks.write_samples(
            call.folder / draw_tasks.SAMPLES_FILE, [(task, settings.group_size) for task in row]
        ),
        SELECTION_FILE: _write_selection(
            call.folder / SELECTION_FILE, [by_id[task.task_id] for task in row], measures
        ),
    }
    if how is not None:
        written[task_results.RESULTS_FILE] = task_results.write_results(
            call.folder / task_results.RESULTS_FILE, known
        )
    reasons = Counter(each.reason for _, each in by_id.values())
    return StageResult(
        counters={
            "tasks": len(row),
            **{f"drawn_{reason}": number for reason, number in sorted(reasons.items())},
            **({} if how is None else {"tried_tasks": len(known), _SEEN: seen}),
        },
        metrics=_means([task.task_id for task in row], measures),
        rows=written,
    )


SELECT_TASKS = Stage(
    name="select_tasks",
    version=2,
    output="selection",
    settings=SelectSettings,
    compute=_compute,
    code=("environment",),
)


@dataclass(frozen=True)
class _Measures:
    """What is known of tasks, by their ids; empty where the selection does not ask for it."""

    results: task_results.Results
    expected: Mapping[str, float]
    difficulty: Mapping[str, float]

    def hardness(self) -> Mapping[str, float]:
        """Numbers by which tasks are ordered from easy to hard."""
        return self.difficulty or {task_id: -expected for task_id, expected in self.expected.items()}


def _known(
    call: StageCall[SelectSettings], how: ResultSettings
) -> tuple[dict[str, task_results.TaskResult], int]:
    """What is known of tasks, and the newest iteration whose rollouts are in it."""
    from storage.tables.trajectories import scan_trajectories

    known: dict[str, task_results.TaskResult] = {}
    seen = 0
    before = call.inputs.get(_BEFORE)
    if before is not None and any(file.path == task_results.RESULTS_FILE for file in before.files):
        known = task_results.read_results(before.path(task_results.RESULTS_FILE))
        seen = int(before.manifest.counters[_SEEN])
    for name in sorted(name for name in call.inputs if name.startswith(_ROLLOUTS)):
        iteration = int(name.removeprefix(_ROLLOUTS))
        # On a branch with a longer lag, the previous selection may have seen these rollouts.
        if iteration > seen:
            files = trajectory_files(call.inputs[name], call.resources.store)
            attempts = task_results.first_attempts(scan_trajectories(files))
            known = task_results.with_iteration(known, iteration, attempts, how.discount)
            seen = iteration
    return known, seen


def _difficulty(environment: PluginSettings | None, tasks: Sequence[Task]) -> dict[str, float]:
    """Task -> its difficulty, as the environment or the part of a mixture says. Raises `InputError` where
    that is not a finite number."""
    assert environment is not None
    plugin = plugins("environments")[environment.type].value
    found = {}
    for task in tasks:
        part, own = plugin.part(environment, task)
        value = float(part.plugin.splits.difficulty(part.settings, own))
        if not math.isfinite(value):
            raise InputError(
                f"task {task.task_id}: environment {part.settings.type} says that its difficulty is {value}; "
                "rollouts.selection: easy_to_hard needs a finite number, or by: results"
            )
        found[task.task_id] = value
    return found


def _write_selection(
    path: Path, drawn: Sequence[tuple[str, task_results.DrawnTask]], measures: _Measures
) -> int:
    from storage.tables.parquet import write_rows

    def row(part: str, each: task_results.DrawnTask) -> dict[str, object]:
        task_id = each.task.task_id
        known = measures.results.get(task_id)
        asked = bool(measures.expected)
        return {
            "task_id": task_id,
            "task_type": each.task.task_type,
            "part": part,
            "tries": (known.tries if known is not None else 0.0) if asked else None,
            "successes": (known.successes if known is not None else 0.0) if asked else None,
            "last_iteration": None if known is None else known.last_iteration,
            "expected_success": measures.expected.get(task_id),
            "difficulty": measures.difficulty.get(task_id),
            "weight": each.weight,
            "probability": each.probability,
            "reason": each.reason,
        }

    return write_rows(path, (row(part, each) for part, each in drawn), _table())


def _means(drawn: Sequence[str], measures: _Measures) -> dict[str, float]:
    metrics = {}
    if measures.expected:
        metrics["expected_success"] = fmean(measures.expected[task_id] for task_id in drawn)
    if measures.difficulty:
        metrics["difficulty"] = fmean(measures.difficulty[task_id] for task_id in drawn)
    return metrics


def _table() -> TableFormat:
    # Planning does not import pyarrow.
    import pyarrow as pa

    from storage.tables.parquet import TableFormat

    schema = pa.schema(
        [
            pa.field("task_id", pa.string(), nullable=False),  # the drawn task
            pa.field("task_type", pa.string(), nullable=False),  # kind of task
            pa.field("part", pa.string(), nullable=False),  # of a mixture; empty without one
            pa.field("tries", pa.float64()),  # first attempts, earlier ones discounted
            pa.field("successes", pa.float64()),  # of these
            pa.field("last_iteration", pa.int32()),  # newest of these; null: never tried
            pa.field("expected_success", pa.float64()),  # 0 to 1
            pa.field("difficulty", pa.float64()),  # what the environment says
            pa.field("weight", pa.float64(), nullable=False),  # its weight in the draw
            pa.field("probability", pa.float64(), nullable=False),  # its chance in the first draw
            pa.field("reason", pa.string(), nullable=False),  # `new`, `expected_success` or `window`
        ]
    )
    return TableFormat(
        name="task_selection", version=1, schema=schema, dictionary=("task_type", "part", "reason")
    )
