"""The stage that fixes a run's tasks, and how each iteration draws from them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.environments.interface import Task
from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.outcome import StageOutcome
from erl_pipeline.pipeline.stage import Work, run_stage
from storage.artifacts.recipe import Recipe, derive_seed
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError

TRAINING, HELD_OUT = "training.jsonl", "held_out.jsonl"


def prepare_tasks(context: RunContext) -> StageOutcome:
    """Commit the training and held-out tasks: generated from the environment's seed, or read from files."""
    config = context.config
    training = ENVIRONMENT.training_tasks(config.environment, config.seed)
    held_out = ENVIRONMENT.held_out_tasks(config.environment, config.seed, config.evaluation.tasks)
    recipe = Recipe(
        stage="prepare_tasks",
        stage_version=1,
        kind="tasks",
        settings={
            "environment": config.environment.model_dump(mode="json", exclude={"task_file"}),
            "held_out": config.evaluation.tasks,
            # The tasks themselves, so that an edited task file is another artifact.
            "tasks": derive_seed(*[task_line(task) for task in [*training, *held_out]]),
        },
        inputs={},
        seed=0,
    )

    def write(folder: Path) -> Work:
        for name, tasks in ((TRAINING, training), (HELD_OUT, held_out)):
            (folder / name).write_text("".join(task_line(task) + "\n" for task in tasks), encoding="utf-8")
        return Work(counters={"training_tasks": len(training), "held_out_tasks": len(held_out)})

    return run_stage(context, recipe, None, write)


def read_tasks(store: ArtifactStore, tasks_id: str, name: str) -> list[Task]:
    """The training or held-out tasks of a committed task set."""
    lines = store.open(tasks_id).path(name).read_text(encoding="utf-8").splitlines()
    return [Task(**json.loads(line)) for line in lines]


def draw_tasks(tasks: Sequence[Task], count: int, run_seed: int, iteration: int) -> list[Task]:
    """The `count` different tasks of an iteration (from 1).

    A seeded order of all tasks is cut into iterations; when less than a whole iteration is left, the
    next order begins, so that no task comes twice in one iteration. Raises `InputError` when there are
    fewer tasks than `count`.
    """
    if count > len(tasks):
        raise InputError(
            f"rollouts.tasks_per_iteration: {count} tasks are asked for, but there are {len(tasks)} training "
            "tasks; ask for fewer, or give more"
        )
    epoch, place = divmod(iteration - 1, len(tasks) // count)
    order = list(tasks)
    random.Random(derive_seed(run_seed, "task order", epoch)).shuffle(order)
    return order[place * count : (place + 1) * count]


def task_line(task: Task) -> str:
    """A task as a line of JSON; equal for equal tasks."""
    return json.dumps(
        {
            "task_id": task.task_id,
            "task_type": task.task_type,
            "environment": task.environment,
            "payload": dict(task.payload),
        },
        sort_keys=True,
    )
