"""Small runs whose rollouts get made-up outcomes, and in one of two also attempts that were not scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.config.run import RunConfig
from erl_pipeline.environments.prompt_format import ExperienceOperation
from erl_pipeline.episodes.context import group_id
from erl_pipeline.episodes.play import PlayedEpisodes
from erl_pipeline.plan.stage import StageCall
from erl_pipeline.runs.origins import begin_offline
from erl_pipeline.stages.extractor import extract
from erl_pipeline.stages.memory import opened_memory
from erl_pipeline.stages.names import MEMORY, TASKS, TRAINING
from erl_pipeline.stages.rollouts import counts, generate_rollouts
from erl_pipeline.stages.rollouts.playing import play_with_checkpoint
from erl_pipeline.stages.tasks.prepare_tasks import read_tasks
from storage.runs.documents import OfflineOrigin
from storage.tables.scored import NOT_SCORED
from storage.tables.trajectories import FREE, GUIDED, Trajectory
from tests.erl_pipeline.runs.small_runs import go, small

NOTE = "? a b ?"
ROLLOUTS: dict[str, Any] = {"tasks_per_iteration": 2, "group_size": 4, "tasks_per_shard": 1}
ERL = {
    # Every note that is tried is kept.
    "method": {"type": "erl", "memory": {"trials": {"tasks": 2, "attempts": 1, "margin": -2.0}}},
    "distillation": {"reward_above": -1.0, "chain": True},
    "objective": {"advantages_per": "group", "correction": {"type": "decoupled"}},
    "self_distillation": {"combination": "loss", "teacher": "ema"},
    "rollouts": {**ROLLOUTS, "selection": {"type": "by_difficulty", "new": 0.0}},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "erl": ERL,
    "replay by bucket": {
        "method": "rlvr",
        "replay": {"start_success": 0.0, "importance": "trainer"},
    },
    "replay by tier": {
        "method": "rlvr",
        "replay": {"start_success": 0.0, "sampler": "tiers"},
        "distillation": {"form": "joint", "reward_above": -1.0},
    },
    "experience": {
        "method": {
            "type": "complementary",
            "experience": {
                "warmup_iterations": 0,
                "merge_every": None,
                "extractor": {
                    "batch": 2,
                    "cold_start": {"steps": 4, "demonstrations_per_step": 4, "gate": 0},
                },
            },
        },
    },
    "weights": {"method": {"type": "complementary", "experience": {"type": "weights", "sampled": 4}}},
}
"""Together their iterations have every stage that reads trajectories; `erl` is also replayed offline."""

OFFLINE = OfflineOrigin(run="small", first_iteration=1, last_iteration=2, checkpoint_id=None, evaluates=False)


def configured(name: str) -> RunConfig:
    return small(**{"rollouts": ROLLOUTS, **CONFIGS[name]})


def trained(name: str, store: Path, patch: pytest.MonkeyPatch, *, unscored: bool) -> Path:
    """The store with a run of two iterations; see `go_with_outcomes`."""
    go_with_outcomes(configured(name), store, patch, retried=name == "erl", unscored=unscored)
    if name == "erl":
        offline = configured(name).model_copy(update={"name": "offline"})
        go(offline, store, begin=partial(begin_offline, origin=OFFLINE))
    return store


def go_with_outcomes(
    config: RunConfig, store: Path, patch: pytest.MonkeyPatch, *, retried: bool, unscored: bool = False
) -> None:
    """Make a run. Samples 0 and 2 of each task succeed, where they are `retried` at the second attempt; the
    extractor always writes the same note.

    `unscored`: each shard also has attempts that were not scored, at its own task and at another one. What
    their columns say of reward and success is of every kind.
    """
    play = play_with_checkpoint

    def played(call: StageCall[Any], *args: Any, **named: Any) -> PlayedEpisodes:
        found = play(call, *args, **named)
        rows = [row for first in found.rows for row in _outcome(first, call, retried=retried)]
        if unscored:
            known = {row.task_id for row in rows}
            tasks = read_tasks(call.inputs[TASKS], TRAINING, call.resources)
            rows += _failed(rows, next(each.task_id for each in reversed(tasks) if each.task_id not in known))
        return replace(found, rows=rows)

    patch.setattr(generate_rollouts, "play_with_checkpoint", played)
    patch.setattr(counts, "ALLOWED_SHARE", 1.0)
    patch.setattr(extract, "read_answer", lambda *_: [ExperienceOperation("add", NOTE)])
    go(config, store)
    patch.undo()


def _outcome(first: Trajectory, call: StageCall[Any], *, retried: bool) -> list[Trajectory]:
    """The rows of an episode that begins with this attempt, with made-up outcomes."""
    if first.parent_trajectory_id is not None:
        return []
    solved = first.sample_index % 2 == 0
    if not retried:
        return [_ended(first, solved=solved)]
    memory = call.inputs.get(MEMORY)
    version = "" if memory is None else memory.manifest.artifact_id
    entries: tuple[str, ...] = ()
    if memory is not None:
        held = opened_memory(call.resources, call.settings.play.retrieval.embedding_model).at(version)
        entries = tuple(held.entries()["entry_id"].sort()[:1])
    free = first.sample_index > 1
    reflection = replace(
        _ended(_later(first, "reflection", first), solved=solved),
        finish_reason="stop",
        text=NOTE,
        subgroup=None if memory is None else FREE if free else GUIDED,
        memory_version="" if free else version,
        memory_entry_ids=() if free else entries,
    )
    second = _ended(_later(first, "second_attempt", reflection), solved=solved)
    return [_ended(first, solved=False), reflection, second]


def _ended(row: Trajectory, *, solved: bool) -> Trajectory:
    return replace(row, reward=float(solved), success=solved, finish_reason="done", truncated=False)


def _later(first: Trajectory, role: str, parent: Trajectory) -> Trajectory:
    return replace(
        first,
        trajectory_id=f"{first.trajectory_id}-{role}",
        parent_trajectory_id=parent.trajectory_id,
        role=role,
        revision_index=1,
        group_id=group_id(first.iteration, first.task_id, role, 1),
    )


def _failed(rows: Sequence[Trajectory], other: str) -> list[Trajectory]:
    """Copies of the first episode that were not scored, one for each reason and kind of outcome; the last two
    are the only attempts at another task."""
    kinds = [(reason, reward) for reason in NOT_SCORED for reward in (0.0, 1.0)]
    return [
        _copy(row, reason, reward, 100 + number, other if number >= len(kinds) - 2 else row.task_id)
        for number, (reason, reward) in enumerate(kinds)
        for row in rows
        if row.episode_id == rows[0].episode_id
    ]


def _copy(row: Trajectory, reason: str, reward: float, sample: int, task: str) -> Trajectory:
    name, parent = f"{reason}-{reward:g}", row.parent_trajectory_id
    return replace(
        row,
        trajectory_id=f"{row.trajectory_id}-{name}",
        episode_id=f"{row.episode_id}-{name}",
        parent_trajectory_id=None if parent is None else f"{parent}-{name}",
        task_id=task,
        sample_index=sample,
        group_id=group_id(row.iteration, task, row.role, row.revision_index),
        reward=reward,
        success=reward > 0,
        finish_reason=reason,
    )
