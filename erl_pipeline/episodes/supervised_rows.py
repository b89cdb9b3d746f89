"""Trajectories as supervised rows."""

from __future__ import annotations

import json

from erl_pipeline.episodes.context import opening_messages
from storage.tables.training import SftRow
from storage.tables.trajectories import Trajectory


def supervised_row(
    row_id: str, role: str, row: Trajectory, *, asked: Trajectory, first: Trajectory, via: Trajectory | None
) -> SftRow:
    """The response of `row` on the prompt of `asked`, in the episode that `first` began; `via` is the text
    that led to it."""
    return SftRow(
        sft_row_id=row_id,
        prompt=tuple({"role": said["role"], "content": said["content"]} for said in opening_messages(asked)),
        completion=tuple(json.loads(row.messages)[len(opening_messages(row)) :]),
        input_token_ids=asked.prompt_token_ids + row.response_token_ids,
        loss_mask=(0,) * len(asked.prompt_token_ids) + row.response_mask,
        trajectory_id=row.trajectory_id,
        role=role,
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
