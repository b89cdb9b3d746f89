"""Trials of new notes: which are tried, on what, and what the attempts show."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from erl_pipeline.environments.interface import Task
from erl_pipeline.episodes.context import RoleLimits
from erl_pipeline.policies.checkpoints import ANY_TYPE, CHECKPOINT, INSTRUCTION
from erl_pipeline.stages.rollouts.try_notes import (
    TRIAL,
    TrialRewards,
    _unknown,
    new_notes,
    play_trial,
    trial_rewards,
    trial_tasks,
)
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.episodes.script import COMPACT, TASK, play, scripted

REFLECTION = play(["down b", "? a b ?", "right a", "right a"])[0][1]


def reflection(text: str, *, success: bool, task: str = "t1", task_type: str = "lake") -> Trajectory:
    return replace(REFLECTION, text=text, success=success, task_id=task, task_type=task_type)


def test_notes_that_led_to_success_are_tried_first_then_those_written_most_often() -> None:
    rows = [
        reflection("failed", success=False),
        reflection("once", success=True),
        reflection("twice", success=True),
        reflection("failed", success=False),
        reflection("twice", success=False),
        reflection("once", success=True, task_type="ice"),
    ]
    notes = new_notes(rows)
    assert [(note.task_type, note.text, note.successes, len(note.reflections)) for note in notes] == [
        ("lake", "twice", 1, 2),
        ("lake", "once", 1, 1),
        ("ice", "once", 1, 1),
        ("lake", "failed", 0, 2),
    ]


def test_a_note_is_tried_on_tasks_of_its_type_that_no_tried_note_was_written_on() -> None:
    tasks = [Task(f"t{number}", "lake", "frozen_lake", {}) for number in range(6)]
    tasks.append(Task("t7", "ice", "frozen_lake", {}))
    notes = new_notes([reflection("a", success=True, task="t1"), reflection("b", success=True, task="t2")])
    chosen = trial_tasks(tasks, notes, 3, seed=5)
    assert [len(chosen["lake"]), *chosen] == [3, "lake"]
    assert {task.task_id for task in chosen["lake"]} <= {"t0", "t3", "t4", "t5"}
    assert trial_tasks(tasks, notes, 9, seed=5)["lake"][:3] == chosen["lake"]
    of_another_seed = {
        task.task_id for seed in range(9) for task in trial_tasks(tasks, notes, 1, seed)["lake"]
    }
    assert len(of_another_seed) > 1


@pytest.mark.parametrize(("sample", "shown"), [(0, "?"), (1, "?"), (2, "a"), (3, "a"), (4, "b"), (5, "b")])
def test_the_first_samples_see_no_note_and_each_note_has_as_many(sample: int, shown: str) -> None:
    context = scripted(["right a", "right a"], [], sample=sample)
    context = replace(context, limits=replace(context.limits, by_role={TRIAL: RoleLimits(1.0, 8)}))
    notes = {TASK.task_type: [f"{word} ? ? ?" for word in "ab"]}
    [row] = asyncio.run(play_trial(context, prompts=COMPACT, notes=notes, attempts=2, instructions=False))
    assert (row.role, row.revision_index, row.reward) == (TRIAL, sample // 2, 1.0)
    assert f"notes {shown} ? ? ?" in row.messages
    assert row.parent_trajectory_id is None


@pytest.mark.parametrize("task_type", [ANY_TYPE, TASK.task_type])
def test_an_instruction_is_tried_in_place_of_the_policys_own_with_the_same_seeds(task_type: str) -> None:
    seen = []
    for sample in (0, 1, 2, 3):
        context = scripted(["right a", "right a"], [], sample=sample)
        limits = replace(context.limits, by_role={TRIAL: RoleLimits(1.0, 8)})
        context = replace(context, limits=limits, instruction="b ? ? ?")
        [row] = asyncio.run(play_trial(context, COMPACT, {task_type: ["a ? ? ?"]}, 2, instructions=True))
        seen.append(("notes a ? ? ?" in row.messages, "notes b ? ? ?" in row.messages, row.seed))
    seeds = [seed for _, _, seed in seen[:2]]
    assert seen == [
        (False, True, seeds[0]),
        (False, True, seeds[1]),
        (True, False, seeds[0]),
        (True, False, seeds[1]),
    ]
    assert seeds[0] != seeds[1]


def test_an_instruction_for_all_tasks_is_tried_on_tasks_of_all_types() -> None:
    tasks = [Task(f"t{number}", ("lake", "ice")[number % 2], "frozen_lake", {}) for number in range(6)]
    notes = new_notes([reflection("a", success=False, task="t1", task_type=ANY_TYPE)])
    chosen = trial_tasks(tasks, notes, 9, seed=5)
    assert {task.task_id for task in chosen[ANY_TYPE]} == {"t0", "t2", "t3", "t4", "t5"}
    rows = [attempt("t1", 0, 0.0), attempt("t1", 1, 1.0), replace(attempt("t2", 0, 0.5), task_type="ice")]
    rows.append(replace(attempt("t2", 1, 0.0), task_type="ice"))
    assert trial_rewards(ANY_TYPE, 1, rows) == TrialRewards(["t1", "t2"], 0.5, 0.25)


def attempt(task: str, number: int, reward: float, ended: str = "done") -> Trajectory:
    return replace(
        REFLECTION,
        role=TRIAL,
        task_id=task,
        task_type="lake",
        revision_index=number,
        reward=reward,
        finish_reason=ended,
    )


def test_rewards_are_means_over_tasks_that_were_scored_with_the_note_and_without() -> None:
    attempts = [
        *(attempt("t1", 0, reward) for reward in (0.0, 1.0)),
        *(attempt("t1", 1, reward) for reward in (1.0, 1.0)),
        *(attempt("t2", 0, reward) for reward in (0.0, 0.0)),
        attempt("t2", 1, 1.0),
        attempt("t2", 1, 0.0, "environment_error"),
        attempt("t3", 0, 1.0),
        attempt("t3", 1, 0.0, "environment_error"),
        *(attempt(task, 2, 0.25) for task in ("t1", "t2", "t3")),
    ]
    assert trial_rewards("lake", 1, attempts) == TrialRewards(["t1", "t2"], 1.0, 0.25)
    assert trial_rewards("lake", 2, attempts) == TrialRewards(["t1", "t2", "t3"], 0.25, 0.5)
    assert trial_rewards("lake", 3, attempts) is None
    assert trial_rewards("ice", 1, attempts) is None


def test_an_instruction_that_the_policy_is_shown_at_such_tasks_is_not_tried(tmp_path: Path) -> None:
    recipe = Recipe("adopt_instruction", 1, {}, {}, 0, kind="checkpoint")
    with ArtifactStore(str(tmp_path)).create(recipe, run="r", iteration=1) as staging:
        (staging.path / INSTRUCTION).parent.mkdir()
        own = {ANY_TYPE: {"text": "for all"}, "ice": {"text": "for ice"}}
        (staging.path / INSTRUCTION).write_text(json.dumps(own))
        checkpoint = staging.commit()
    call: Any = SimpleNamespace(
        settings=SimpleNamespace(instruction_per="task_type"), inputs={CHECKPOINT: checkpoint}
    )
    notes = new_notes(
        reflection(text, success=False, task_type=task_type)
        for task_type in ("lake", "ice")
        for text in ("for all", "for ice")
    )
    tried = [(note.task_type, note.text) for note in _unknown(call, notes)]
    assert tried == [("lake", "for ice"), ("ice", "for all")]
