"""The stage that builds the distillation dataset."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from erl_pipeline.episodes.rows import opening_messages
from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.outcome import StageOutcome
from erl_pipeline.pipeline.stage import Work, run_stage
from erl_pipeline.stages.rollouts import trajectory_files
from storage.artifacts.recipe import Recipe
from storage.tables.sft import SftRow, write_sft_rows
from storage.tables.trajectories import Trajectory, read_trajectories

DATASET = "sft.parquet"


def build_distillation(context: RunContext, iteration: int, rollouts_id: str) -> StageOutcome:
    """Commit the dataset: attempts that succeeded, on the prompt of the first attempt of their episode."""
    settings = context.config.distillation
    role = context.config.distilled_role
    assert settings is not None
    assert role is not None
    recipe = Recipe(
        stage="build_distillation",
        stage_version=1,
        kind="sft_dataset",
        settings={"role": role, "max_rows_per_task": settings.max_rows_per_task},
        inputs={"rollouts": rollouts_id},
        seed=context.config.seed,
    )

    def write(folder: Path) -> Work:
        trajectories = read_trajectories(trajectory_files(context.store, rollouts_id))
        rows = list(distilled_rows(trajectories, role, settings.max_rows_per_task))
        write_sft_rows(folder / DATASET, rows)
        trained = sum(sum(row.loss_mask) for row in rows)
        return Work(counters={"sft_rows": len(rows), "sft_tokens": trained}, rows={DATASET: len(rows)})

    return run_stage(context, recipe, iteration, write)


def distilled_rows(
    trajectories: Sequence[Trajectory], role: str, max_rows_per_task: int | None
) -> Iterator[SftRow]:
    """Supervised rows of the successful attempts of `role`.

    The prompt is token for token that of the episode's first attempt, which is the prompt that
    evaluation uses; the response is token for token what was sampled. Where a task has more successes
    than `max_rows_per_task`, the first in the order of the trajectories are kept.
    """
    by_id = {row.trajectory_id: row for row in trajectories}
    firsts = {row.episode_id: row for row in trajectories if row.role == "first_attempt"}
    rows_of_task: Counter[str] = Counter()
    for row in trajectories:
        if row.role != role or not row.success or row.truncated:
            continue
        if max_rows_per_task is not None and rows_of_task[row.task_id] >= max_rows_per_task:
            continue
        rows_of_task[row.task_id] += 1
        first = firsts[row.episode_id]
        parent = by_id.get(row.parent_trajectory_id or "")
        reflection = parent if parent is not None and parent.role == "reflection" else None
        yield SftRow(
            sft_row_id=f"s-{row.trajectory_id}",
            prompt=tuple(
                {"role": said["role"], "content": said["content"]} for said in opening_messages(first)
            ),
            completion=tuple(json.loads(row.messages)[len(opening_messages(row)) :]),
            input_token_ids=first.prompt_token_ids + row.response_token_ids,
            loss_mask=(0,) * len(first.prompt_token_ids) + row.response_mask,
            trajectory_id=row.trajectory_id,
            reflection_trajectory_id=reflection.trajectory_id if reflection else None,
            first_trajectory_id=first.trajectory_id,
            memory_entry_ids=reflection.memory_entry_ids if reflection else (),
            task_id=row.task_id,
            task_type=row.task_type,
            episode_id=row.episode_id,
            iteration=row.iteration,
            policy_version=row.policy_version,
            weight=1.0,
        )
