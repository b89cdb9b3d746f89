"""The stage that generates rollouts, shard by shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from erl_pipeline.config.generation import sampling_settings
from erl_pipeline.environments.interface import Task
from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.outcome import StageOutcome
from erl_pipeline.pipeline.stage import Work, run_stage
from erl_pipeline.policies.hardware import training_device
from erl_pipeline.stages.guarantees import sampling_guarantee
from erl_pipeline.stages.play import play_episodes
from erl_pipeline.stages.prepare_tasks import TRAINING, draw_tasks, read_tasks
from erl_pipeline.stages.rollout_counts import count_rollouts, success_rates
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.tables.trajectories import write_trajectories

TRAJECTORIES = "trajectories.parquet"


@dataclass(frozen=True)
class ShardPlan:
    """Some of an iteration's tasks, all of whose episodes are generated in one go."""

    iteration: int
    shard: int
    tasks: tuple[Task, ...]
    tasks_id: str
    checkpoint_id: str
    memory_id: str | None


def plan_shards(
    context: RunContext, iteration: int, tasks_id: str, checkpoint_id: str, memory_id: str | None
) -> list[ShardPlan]:
    """Cut an iteration's tasks into shards."""
    rollouts = context.config.rollouts
    drawn = draw_tasks(
        read_tasks(context.store, tasks_id, TRAINING),
        rollouts.tasks_per_iteration,
        context.config.seed,
        iteration,
    )
    size = rollouts.tasks_per_shard
    return [
        ShardPlan(iteration, shard, tuple(drawn[start : start + size]), tasks_id, checkpoint_id, memory_id)
        for shard, start in enumerate(range(0, len(drawn), size))
    ]


def rollout_shard(context: RunContext, plan: ShardPlan) -> StageOutcome:
    """Generate one shard's episodes and commit their trajectories."""
    config = context.config
    inputs = {"checkpoint": plan.checkpoint_id, "tasks": plan.tasks_id}
    if plan.memory_id is not None:
        inputs["memory"] = plan.memory_id
    recipe = Recipe(
        stage="rollout_shard",
        stage_version=1,
        kind="trajectories",
        settings={
            **config.model_dump(
                mode="json",
                include={
                    **dict.fromkeys(("method", "environment", "sampling", "rollouts", "reflection"), True),
                    # What memory keeps is in the version that is an input.
                    "memory": {"embedding_model", "top_k", "same_task_type"},
                },
            ),
            "engine": sampling_settings(config.engine),
            "iteration": plan.iteration,
            "task_ids": [task.task_id for task in plan.tasks],
        },
        inputs=inputs,
        seed=config.seed,
    )

    def generate(folder: Path) -> Work:
        rows = play_episodes(
            context,
            plan.tasks,
            range(config.rollouts.group_size),
            plan.checkpoint_id,
            plan.memory_id,
            recipe,
            plan.iteration,
            temperature=config.sampling.temperature,
            retries=config.method == "erl",
        )
        write_trajectories(folder / TRAJECTORIES, rows)
        return Work(
            counters=count_rollouts(rows),
            rows={TRAJECTORIES: len(rows)},
            policy_version=plan.checkpoint_id,
            memory_version=plan.memory_id,
            guarantee=sampling_guarantee(config.engine, training_device()),
        )

    total = len(plan.tasks) * config.rollouts.group_size
    return run_stage(context, recipe, plan.iteration, generate, total, "episodes", key=f"{plan.shard:04d}")


def generate_rollouts(
    context: RunContext, iteration: int, checkpoint_id: str, memory_id: str | None, shard_ids: Sequence[str]
) -> StageOutcome:
    """Commit the list of an iteration's shards as its rollouts; the trajectories stay in the shards."""
    counters: dict[str, int] = {}
    for shard_id in shard_ids:
        for name, value in context.store.open(shard_id).manifest.counters.items():
            counters[name] = counters.get(name, 0) + int(value)
    recipe = Recipe(
        stage="generate_rollouts",
        stage_version=1,
        kind="rollouts",
        settings={},
        inputs={f"shard-{index:04d}": shard_id for index, shard_id in enumerate(shard_ids)},
        seed=0,
    )
    return run_stage(
        context,
        recipe,
        iteration,
        lambda _: Work(
            counters=counters,
            metrics=success_rates(counters),
            policy_version=checkpoint_id,
            memory_version=memory_id,
        ),
    )


def trajectory_files(store: ArtifactStore, rollouts_id: str) -> list[Path]:
    """The Parquet files of an iteration's rollouts, in the order of their shards; each verified."""
    inputs = store.open(rollouts_id).manifest.inputs
    return [store.open(inputs[name]).path(TRAJECTORIES) for name in sorted(inputs)]
