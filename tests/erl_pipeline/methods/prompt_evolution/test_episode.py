"""An episode of prompt evolution."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

from erl_pipeline.episodes.context import RoleLimits, SampleRequest
from erl_pipeline.methods.prompt_evolution.episode import run_episode
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.episodes.script import COMPACT, CONTEXT, scripted


def played(
    answers: list[str], *, sample: int = 0, instruction: str | None = None, context_length: int = CONTEXT
) -> list[Trajectory]:
    remaining, asked = list(answers), list[Any]()
    context = scripted(remaining, asked, sample=sample, context_length=context_length)
    limits = {"first_attempt": RoleLimits(1.0, 8), "proposal": RoleLimits(1.0, 8)}
    context = replace(context, instruction=instruction, limits=replace(context.limits, by_role=limits))
    rows = asyncio.run(run_episode(context, COMPACT, reflections=1))
    assert not remaining
    assert all(isinstance(each, SampleRequest) for each in asked)
    return rows


def opening(row: Trajectory) -> str:
    content: str = json.loads(row.messages)[0]["content"]
    return content


def test_a_failed_attempt_is_followed_by_a_proposal_which_sees_the_instruction() -> None:
    attempt, proposal = played(["down b", "b a c d"], instruction="? a ? ?")
    assert (attempt.role, attempt.reward) == ("first_attempt", 0.0)
    assert opening(attempt).endswith("notes ? a ? ?")
    assert (proposal.role, proposal.text, proposal.reward) == ("proposal", "b a c d", 0.0)
    assert proposal.parent_trajectory_id == attempt.trajectory_id
    assert opening(proposal).endswith("memory ? a ? ? reflect")


def test_without_an_instruction_the_prompt_is_that_of_any_first_attempt() -> None:
    attempt, _ = played(["down b", "b a c d"])
    assert opening(attempt).endswith("notes ? ? ? ?")


def test_a_success_and_further_samples_of_a_task_propose_nothing() -> None:
    assert [row.success for row in played(["right a", "right a"])] == [True]
    assert [row.success for row in played(["down b"], sample=1)] == [False]


def test_an_instruction_that_leaves_no_room_fails_its_attempt() -> None:
    """And not the run, in which a model wrote it."""
    (row,) = played([], instruction="? a ? ?", context_length=24)
    assert (row.finish_reason, row.reward) == ("context", 0.0)


def test_an_ill_formed_proposal_has_no_text() -> None:
    _, proposal = played(["down b", "a b"])
    assert (proposal.text, proposal.finish_reason) == (None, "ill_formed")
