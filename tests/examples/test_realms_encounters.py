"""One encounter under all conditions, with a policy that gives scripted answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from realms.encounters import (
    STREAMED_ATTEMPT,
    STREAMED_REFLECTION,
    STREAMED_RETRY,
    Condition,
    EncounterRules,
    play_encounter,
)

from erl_pipeline.engines.interface import Generation
from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.episodes.context import (
    EpisodeContext,
    EpisodeIdentity,
    EpisodeLimits,
    RetrievalRequest,
    RoleLimits,
    SampleRequest,
)
from erl_pipeline.episodes.dialogue import ChatTokenizer
from erl_pipeline.episodes.guarded_environment import GuardedEnvironment
from storage.memory.view import MemoryHit
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.episodes.script import CONTEXT, PROVENANCE, SETTINGS, TASK, TOKENIZER, says

# The goal is two cells to the right, and `a` moves right; `b` falls into the hole below.
GOAL, HOLE = ["right a", "right a"], ["down b"]
NOTES: Mapping[Condition, str | None] = {
    "none": None,
    "own": "? a ? ?",
    "oracle": "d a b c",
    "other": "a b c d",
}


def encounter(answers: Sequence[str]) -> tuple[list[Trajectory], list[str]]:
    """The rows, and the prompts in which slots were given."""
    remaining, prompts = list(answers), []
    prompt_set = ENVIRONMENT.prompts(SETTINGS)
    assert prompt_set is not None

    async def ask_policy(asked: SampleRequest) -> Generation:
        prompts.append(TOKENIZER.decode(asked.request.prompt_token_ids))
        return says(remaining.pop(0))

    async def ask_memory(asked: RetrievalRequest) -> list[MemoryHit]:
        raise AssertionError("an encounter has its notes, and asks no memory")

    limit = RoleLimits(0.0, 8)
    context = EpisodeContext(
        identity=EpisodeIdentity(TASK, 0, PROVENANCE),
        environment=GuardedEnvironment(lambda: ENVIRONMENT.open(SETTINGS, TASK), 60.0),
        chat=ChatTokenizer(TOKENIZER),
        limits=EpisodeLimits(
            context_length=CONTEXT,
            end_token_ids=frozenset({TOKENIZER.eos_token_id}),
            success_threshold=1.0,
            step_seconds=60.0,
            by_role=dict.fromkeys((STREAMED_ATTEMPT, STREAMED_REFLECTION, STREAMED_RETRY), limit),
        ),
        ask_policy=ask_policy,
        ask_memory=ask_memory,
    )
    rows = asyncio.run(play_encounter(context, EncounterRules(prompt_set, {TASK.task_id: NOTES})))
    assert not remaining
    return rows, prompts


def slots(prompt: str, field: str) -> str:
    words = prompt.split()
    return " ".join(words[words.index(field) + 1 :][:4])


def test_a_task_that_is_solved_without_a_note_is_not_retried() -> None:
    rows, prompts = encounter([*GOAL, *HOLE, *GOAL, *HOLE])
    assert [(row.role, row.sample_index, row.success) for row in rows] == [
        (STREAMED_ATTEMPT, 0, True),
        (STREAMED_ATTEMPT, 1, False),
        (STREAMED_ATTEMPT, 2, True),
        (STREAMED_ATTEMPT, 3, False),
    ]
    given = [slots(prompts[number], "notes") for number in (0, 2, 3, 5)]
    assert given == ["? ? ? ?", "? a ? ?", "d a b c", "a b c d"]
    assert len({row.trajectory_id for row in rows}) == 4


def test_every_condition_retries_the_failure_without_a_note() -> None:
    retries = [
        *("? ? b ?", *HOLE),
        *("? a b ?", *GOAL),
        *("d a b c", *GOAL),
        "up up up up",  # ill-formed: no attempt follows
    ]
    rows, prompts = encounter([*HOLE, *GOAL, *GOAL, *HOLE, *retries])
    later = rows[4:]
    assert [(row.role, row.sample_index, row.success) for row in later] == [
        (STREAMED_REFLECTION, 0, False),
        (STREAMED_RETRY, 0, False),
        (STREAMED_REFLECTION, 1, True),
        (STREAMED_RETRY, 1, True),
        (STREAMED_REFLECTION, 2, True),
        (STREAMED_RETRY, 2, True),
        (STREAMED_REFLECTION, 3, False),
    ]
    asked = [prompt for prompt in prompts if " reflect " in prompt]
    assert [slots(prompt, "memory") for prompt in asked] == ["? ? ? ?", "? a ? ?", "d a b c", "a b c d"]
    # All on the same failure: into the hole below the start.
    assert {prompt.split("memory")[0] for prompt in asked} == {asked[0].split("memory")[0]}
    reflections = [row for row in later if row.role == STREAMED_REFLECTION]
    assert {row.parent_trajectory_id for row in reflections} == {rows[0].trajectory_id}
    assert [row.text for row in reflections] == ["? ? b ?", "? a b ?", "d a b c", None]
    assert reflections[3].finish_reason == "ill_formed"
