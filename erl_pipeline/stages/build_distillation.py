"""The stage that builds the distillation dataset."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from erl_pipeline.config.base import Settings
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.stages.rollouts import trajectory_files

if TYPE_CHECKING:
    from storage.tables.sft import SftRow
    from storage.tables.trajectories import Trajectory

DATASET = "sft.parquet"


class DistillationSettings(Settings):
    """Which attempts become supervised rows, and on whose prompt."""

    role: str
    """Role of the attempts that are distilled."""
    prompt_role: str
    """Role of the attempt, in the same episode, whose prompt they are to be given on."""
    via_role: str | None
    """Role of a text between the two that a row names, such as a reflection; None where there is none."""
    max_rows_per_task: int | None


def _compute(call: StageCall[DistillationSettings]) -> StageResult:
    """Write the dataset: attempts that succeeded, on the prompt of the first attempt of their episode."""
    from storage.tables.sft import write_sft_rows
    from storage.tables.trajectories import read_trajectories

    files = trajectory_files(call.inputs["rollouts"], call.resources.store)
    rows = list(distilled_rows(read_trajectories(files), call.settings))
    write_sft_rows(call.folder / DATASET, rows)
    trained = sum(sum(row.loss_mask) for row in rows)
    return StageResult(counters={"sft_rows": len(rows), "sft_tokens": trained}, rows={DATASET: len(rows)})


BUILD_DISTILLATION = Stage(
    name="build_distillation",
    version=2,
    output="sft_dataset",
    settings=DistillationSettings,
    compute=_compute,
)


def distilled_rows(trajectories: Sequence[Trajectory], settings: DistillationSettings) -> Iterator[SftRow]:
    """Supervised rows of the successful attempts of a role.

    The prompt is token for token that of the episode's attempt of `prompt_role`, which is the prompt that
    evaluation uses; the response is token for token what was sampled. Where a task has more successes
    than `max_rows_per_task`, the first in the order of the trajectories are kept.
    """
    by_id = {row.trajectory_id: row for row in trajectories}
    firsts = {row.episode_id: row for row in trajectories if row.role == settings.prompt_role}
    most = settings.max_rows_per_task
    rows_of_task: Counter[str] = Counter()
    for row in trajectories:
        if row.role != settings.role or not row.success or row.truncated:
            continue
        if most is not None and rows_of_task[row.task_id] >= most:
            continue
        rows_of_task[row.task_id] += 1
        parent = by_id.get(row.parent_trajectory_id or "")
        via = parent if parent is not None and parent.role == settings.via_role else None
        yield distilled_row(row, firsts[row.episode_id], via)


def distilled_row(row: Trajectory, asked: Trajectory | None = None, via: Trajectory | None = None) -> SftRow:
    """The supervised row of an attempt: its response, token for token as it was sampled.

    Args:
        asked: the attempt whose prompt the response is to be given on; None: its own.
        via: the text between the two that led to it, such as a reflection.
    """
    from erl_pipeline.episodes.rows import opening_messages
    from storage.tables.sft import SftRow

    first = asked or row
    return SftRow(
        sft_row_id=f"s-{row.trajectory_id}",
        prompt=tuple({"role": said["role"], "content": said["content"]} for said in opening_messages(first)),
        completion=tuple(json.loads(row.messages)[len(opening_messages(row)) :]),
        input_token_ids=first.prompt_token_ids + row.response_token_ids,
        loss_mask=(0,) * len(first.prompt_token_ids) + row.response_mask,
        trajectory_id=row.trajectory_id,
        reflection_trajectory_id=via.trajectory_id if via else None,
        first_trajectory_id=first.trajectory_id,
        memory_entry_ids=via.memory_entry_ids if via else (),
        task_id=row.task_id,
        task_type=row.task_type,
        episode_id=row.episode_id,
        iteration=row.iteration,
        policy_version=row.policy_version,
        weight=1.0,
    )
