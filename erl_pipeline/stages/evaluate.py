"""The stage that evaluates a checkpoint on held-out tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from erl_pipeline.config.generation import sampling_settings
from erl_pipeline.environments.interface import Task
from erl_pipeline.evaluation.scores import score_evaluation
from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.outcome import StageOutcome
from erl_pipeline.pipeline.stage import Work, run_stage
from erl_pipeline.policies.hardware import training_device
from erl_pipeline.stages.guarantees import sampling_guarantee
from erl_pipeline.stages.play import play_episodes
from erl_pipeline.stages.prepare_tasks import HELD_OUT, read_tasks, task_line
from erl_pipeline.stages.rollout_counts import count_rollouts
from storage.artifacts.recipe import Recipe, derive_seed
from storage.tables.trajectories import scan_trajectories, write_trajectories

EVALUATION = "evaluation.parquet"
EVALUATE, EVALUATE_ON_REQUEST = "evaluate", "evaluate_on_request"


def evaluate(context: RunContext, iteration: int, checkpoint_id: str, tasks_id: str) -> StageOutcome:
    """First attempts of a checkpoint on the run's held-out tasks, without memory or reflection."""
    tasks = read_tasks(context.store, tasks_id, HELD_OUT)
    inputs = {"checkpoint": checkpoint_id, "tasks": tasks_id}
    return evaluate_tasks(context, iteration, checkpoint_id, tasks, inputs)


def evaluate_tasks(
    context: RunContext,
    iteration: int,
    checkpoint_id: str,
    tasks: Sequence[Task],
    inputs: dict[str, str],
    stage: str = EVALUATE,
) -> StageOutcome:
    """Greedy attempts at every task, and sampled ones where the configuration asks; commit rows and scores.

    Args:
        iteration: that of the checkpoint; 0 for the one that the run began with.
        stage: `EVALUATE`, or `EVALUATE_ON_REQUEST` on tasks that are not the run's own.
    """
    config = context.config
    settings = config.evaluation
    recipe = Recipe(
        stage=stage,
        stage_version=1,
        kind="evaluation",
        settings={
            **config.model_dump(mode="json", include={"environment", "sampling", "rollouts", "reflection"}),
            "engine": sampling_settings(config.engine),
            "evaluation": settings.model_dump(mode="json", include={"samples_per_task", "with_reflection"}),
            "tasks": derive_seed(*[task_line(task) for task in tasks]),
        },
        inputs=inputs,
        seed=derive_seed(config.seed, "evaluate"),
    )

    def play(folder: Path) -> Work:
        rows = play_episodes(
            context,
            tasks,
            range(1),
            checkpoint_id,
            None,
            recipe,
            iteration,
            temperature=0.0,
            retries=settings.with_reflection,
        )
        if settings.samples_per_task:
            rows += play_episodes(
                context,
                tasks,
                range(1, 1 + settings.samples_per_task),
                checkpoint_id,
                None,
                recipe,
                iteration,
                temperature=config.sampling.temperature,
                retries=False,
            )
        write_trajectories(folder / EVALUATION, rows)
        scores = score_evaluation(scan_trajectories([folder / EVALUATION]))
        return Work(
            counters=count_rollouts(rows),
            metrics=scores.metrics(),
            rows={EVALUATION: len(rows)},
            policy_version=checkpoint_id,
            guarantee=sampling_guarantee(config.engine, training_device()),
        )

    total = len(tasks) * (1 + settings.samples_per_task)
    key = recipe.artifact_id if stage == EVALUATE_ON_REQUEST else ""
    return run_stage(context, recipe, iteration, play, total, "episodes", key=key)
