"""Attempts and requests, written by hand."""

from __future__ import annotations

from typing import Any

from storage.tables.trajectories import Trajectory


def attempt(number: int, **changes: Any) -> Trajectory:
    """An attempt at the task `t`, or a different trajectory with `changes`."""
    values: dict[str, Any] = {
        "trajectory_id": f"a{number}",
        "episode_id": f"e{number}",
        "parent_trajectory_id": None,
        "iteration": 1,
        "task_id": "t",
        "task_type": "lake",
        "environment": "frozen_lake",
        "role": "first_attempt",
        "revision_index": 0,
        "sample_index": number,
        "group_id": "1/t/first_attempt/0",
        "subgroup": None,
        "prompt_token_ids": (1, 2),
        "response_token_ids": (3, 4),
        "response_mask": (1, 1),
        "behaviour_logprobs": (-0.5, -0.25),
        "temperature": 1.0,
        "policy_version": "policy-1",
        "tokenizer_digest": "tokenizer",
        "reward": 0.0,
        "success": False,
        "finish_reason": "done",
        "truncated": False,
        "feedback": "lost",
        "messages": '[{"role": "user", "content": "board notes ? ? ? ?"}]',
        "memory_version": "",
        "memory_entry_ids": (),
        "seed": 0,
        "task_payload": "{}",
    }
    return Trajectory(**{**values, **changes})


def played(number: int, subgroup: str, *entry_ids: str, success: bool) -> Trajectory:
    """An attempt in one half of its group, with these entries in its prompt."""
    return attempt(
        number, subgroup=subgroup, memory_entry_ids=entry_ids, reward=float(success), success=success
    )
