"""Attempts at tasks, with the outcomes that a test needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from erl_pipeline.episodes.context import group_id
from erl_pipeline.stages.training.replay.draw import replay_row
from erl_pipeline.stages.training.replay.index_experience import TriedTask
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.episodes.script import play

_ROW = play(["right a", "right a"], max_revisions=0)[0][0]


def attempt(
    task: str, sample: int, success: bool, iteration: int = 1, tokens: Sequence[int] = ()
) -> Trajectory:
    """One first attempt; sample and iteration make its response different from others, unless `tokens` are
    given."""
    response = tuple(tokens) or (5 + sample, 5 + iteration, 7)
    return replace(
        _ROW,
        trajectory_id=f"{task}-{iteration}-{sample}",
        episode_id=f"{task}-{iteration}-{sample}",
        task_id=task,
        iteration=iteration,
        sample_index=sample,
        group_id=group_id(iteration, task, "first_attempt", 0),
        response_token_ids=response,
        response_mask=(1,) * len(response),
        behaviour_logprobs=(-0.5,) * len(response),
        policy_version=f"policy-{iteration}",
        tokenizer_digest="ours",
        reward=float(success),
        success=success,
        task_payload=f'{{"board": "{task}"}}',
    )


def group(task: str, outcomes: str, iteration: int = 1) -> list[Trajectory]:
    """`+-+`: a success, a failure, a success."""
    return [attempt(task, i, outcome == "+", iteration) for i, outcome in enumerate(outcomes)]


def tried(task: str, fresh: str, *, replayed: bool = False, iteration: int = 2) -> TriedTask:
    """A group, in which a success of the iteration before may be replayed."""
    source = attempt(task, 0, True, iteration - 1)
    beside = [replay_row(source, "recipe", iteration, len(fresh))] if replayed else []
    return TriedTask(group(task, fresh, iteration), beside)
