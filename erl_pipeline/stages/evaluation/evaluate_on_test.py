"""The stages of a third split: its tasks, and how a checkpoint does on them. A comparison plans them;
training never does, so that no artifact of a training run depends on a test task."""

from __future__ import annotations

from dataclasses import replace

from erl_pipeline.config.plugins import plugins
from erl_pipeline.environments.interface import Task
from erl_pipeline.plan.plan import RunState
from erl_pipeline.plan.planner import Planner
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.stages.evaluation.evaluate import EVALUATE, evaluation_inputs
from erl_pipeline.stages.names import HELD_OUT
from erl_pipeline.stages.tasks.build_environment_files import built_inputs
from erl_pipeline.stages.tasks.prepare_tasks import (
    PREPARE_TASKS,
    TaskSettings,
    located,
    storable_tasks,
    task_line,
)
from storage.artifacts.recipe import derive_seed
from storage.errors import InputError
from storage.texts import StorableTexts


def _test_tasks(call: StageCall[TaskSettings]) -> StageResult:
    """Write the environment's test tasks.

    Raises InputError where there are none, or where one equals a training or a held-out task.
    """
    settings = call.settings
    environment = located(settings.environment, settings.files, call.locations)
    plugin = plugins("environments")[environment.type].value
    texts = StorableTexts()
    tasks = storable_tasks(plugin.splits.test_tasks(environment, settings.seed), texts)
    if not tasks:
        raise InputError(no_test_split(environment.type, plugin.splits.test_needs))
    for name, others in (
        ("training", plugin.training_tasks(environment, settings.seed)),
        ("held-out", plugin.held_out_tasks(environment, settings.seed, settings.held_out)),
    ):
        _require_apart(tasks, name, others)
    lines = "".join(task_line(task) + "\n" for task in tasks)
    (call.folder / HELD_OUT).write_text(lines, encoding="utf-8")
    return StageResult(counters={"test_tasks": len(tasks), **texts.counters()})


TEST_TASKS = Stage(
    name="test_tasks",
    version=1,
    output="tasks",
    settings=TaskSettings,
    compute=_test_tasks,
    slice=PREPARE_TASKS.slice,
    code=("environment",),
)

EVALUATE_ON_TEST = replace(EVALUATE, name="evaluate_on_test")
"""An evaluation on tasks that neither training nor the tuning of settings has seen."""


def plan_test_tasks(planner: Planner) -> str:
    """Plan the tasks of the third split."""
    return planner.add(TEST_TASKS, built_inputs(planner), iteration=None)


def plan_test_evaluation(planner: Planner, state: RunState, iteration: int, tasks: str) -> str:
    """Plan first attempts of a checkpoint at test tasks, as an evaluation makes them at held-out ones."""
    return planner.add(
        EVALUATE_ON_TEST,
        evaluation_inputs(planner, state, tasks),
        iteration=iteration,
        settings=planner.settings(EVALUATE),
        seed=derive_seed(planner.config.seed, EVALUATE_ON_TEST.name),
        index={"iteration": iteration},
    )


def no_test_split(environment: str, needed: str) -> str:
    """What to tell a user whose settings give no test tasks."""
    advice = f"set environment.{needed}" if needed else f"environment {environment} offers no such split"
    return (
        "a comparison reports on a third split of the tasks, which no setting was tuned on, and there is "
        f"none; {advice}"
    )


def _require_apart(tasks: list[Task], name: str, others: list[Task]) -> None:
    """Raise InputError for a test task that is also one of the others."""
    known = {task_line(replace(task, task_id="")): task.task_id for task in others}
    for task in tasks:
        twin = known.get(task_line(replace(task, task_id="")))
        if twin is not None:
            raise InputError(
                f"test task {task.task_id} equals the {name} task {twin}; nothing can be reported on it"
            )
