"""Attempts that the environment or its scorer failed: dropped, counted as zero, or played again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from erl_pipeline.config.rollouts import EpisodeConfig
from erl_pipeline.environments.interface import ScorerFailed, Task, Timing, Transition
from erl_pipeline.environments.messages import AssistantTurn
from erl_pipeline.episodes.play import BatchSampling, EpisodeSetup, play_episodes
from erl_pipeline.episodes.roles import trainable
from erl_pipeline.stages.rollouts.counts import attempts_not_scored, count_rollouts
from storage.errors import EnvironmentFailed
from storage.tables.scored import FAILED, Failed
from tests.erl_pipeline.episodes.engines import DownwardBatches
from tests.erl_pipeline.episodes.scripted_environment import Scripted, ends, goes_on, scripted, tasks

Step = Callable[[AssistantTurn], Awaitable[Transition]]
TIMINGS: list[Timing] = ["instant", "waiting"]


async def raises(turn: AssistantTurn) -> Transition:
    raise RuntimeError("gone")


async def never(turn: AssistantTurn) -> Transition:
    await asyncio.Event().wait()
    raise AssertionError


async def cannot_be_scored(turn: AssistantTurn) -> Transition:
    raise ScorerFailed("it gave nan")


FAILURES = dict(zip(FAILED, (raises, never, cannot_be_scored), strict=True))


def second_attempt(does: Step) -> Callable[[Task], Scripted]:
    """Environments; in that of the task `t0` the second attempt does this."""

    def make(task: Task) -> Scripted:
        made = Scripted()

        async def step(turn: AssistantTurn) -> Transition:
            return ends() if len(made.said) == 1 else await does(turn)

        if task.task_id == "t0":
            made.on_step = step
        return made

    return make


def limited(given: EpisodeSetup, **limits: Any) -> EpisodeSetup:
    return replace(given, limits=replace(given.limits, **limits))


@pytest.mark.parametrize("reason", FAILED)
def test_a_reflection_is_scored_as_little_as_the_second_attempt_that_it_led_to(reason: Failed) -> None:
    given, _ = scripted(second_attempt(FAILURES[reason]), step_seconds=0.05)
    rows = play_episodes(given, tasks(2), range(1), BatchSampling(DownwardBatches())).rows
    assert [(row.role, row.reward, row.finish_reason) for row in rows[:3]] == [
        ("first_attempt", 0.0, "done"),
        ("reflection", 0.0, reason),
        ("second_attempt", 0.0, reason),
    ]
    assert [row.role for row in trainable(rows) if row.task_id == "t0"] == ["first_attempt"]
    # One attempt failed; the reflection is left out for its sake.
    assert {name: count for name, count in attempts_not_scored(rows).items() if count} == {f"{reason}s": 1}
    counts = count_rollouts(rows)
    assert (counts["reflection_count"], counts["reflection_not_scored"]) == (2, 1)


def test_a_failure_that_counts_as_zero_is_trained_and_so_is_the_reflection_that_led_to_it() -> None:
    given = limited(scripted(second_attempt(raises))[0], failures_are_zero=True)
    rows = play_episodes(given, tasks(2), range(1), BatchSampling(DownwardBatches())).rows
    assert [(row.role, row.reward, row.finish_reason) for row in rows[:3]] == [
        ("first_attempt", 0.0, "done"),
        ("reflection", 0.0, "stop"),
        ("second_attempt", 0.0, "environment_error_as_zero"),
    ]
    assert trainable(rows) == rows
    assert count_rollouts(rows)["counted_as_zero"] == 1


def test_what_a_scorer_could_not_score_never_counts_as_zero() -> None:
    given = limited(scripted(second_attempt(cannot_be_scored))[0], failures_are_zero=True)
    rows = play_episodes(given, tasks(2), range(1), BatchSampling(DownwardBatches())).rows
    assert [row.finish_reason for row in rows[:3]] == ["done", "scorer_error", "scorer_error"]


async def three_turns(environment: Scripted, turn: AssistantTurn) -> Transition:
    return ends() if len(environment.said) % 3 == 0 else goes_on(moves=1.0)


def failing(times: int) -> Callable[[Task], Scripted]:
    """Environments of attempts with three turns. The first `times` that are opened for the task `t0` fail in
    the second turn."""
    left = [times]

    def make(task: Task) -> Scripted:
        made = Scripted()
        fails = task.task_id == "t0" and left[0] > 0
        left[0] -= fails

        async def step(turn: AssistantTurn) -> Transition:
            if fails and len(made.said) == 2:
                raise RuntimeError("gone")
            return await three_turns(made, turn)

        made.on_step = step
        return made

    return make


@pytest.mark.parametrize("timing", TIMINGS)
def test_an_attempt_that_is_played_again_leaves_no_trace_of_its_failures(timing: Timing) -> None:
    whole_engine, engine = DownwardBatches(), DownwardBatches()
    whole = play_episodes(scripted(failing(0), timing)[0], tasks(2), range(1), BatchSampling(whole_engine))
    given, opened = scripted(failing(2), timing)
    played = play_episodes(limited(given, retries=2), tasks(2), range(1), BatchSampling(engine))
    assert played.rows == whole.rows
    assert played.counters == {"attempts_retried": 2}
    # What was said before a failure is not sampled again, since its prompt is the same.
    assert sum(map(len, engine.batches)) == sum(map(len, whole_engine.batches))
    assert [each.closed for each in opened] == [1, 1, 1, 1]


def test_an_attempt_that_fails_each_time_is_dropped() -> None:
    given, opened = scripted(failing(3))
    played = play_episodes(limited(given, retries=2), tasks(2), range(1), BatchSampling(DownwardBatches()))
    assert played.rows[0].finish_reason == "environment_error"
    assert played.rows[0].feedback == "step: RuntimeError: gone"
    assert played.counters == {"attempts_retried": 2}
    assert len(opened) == 3 + 1


def test_an_environment_that_fails_in_all_retries_of_all_episodes_ends_the_call() -> None:
    given, _ = scripted(lambda task: Scripted(on_step=raises))
    with pytest.raises(EnvironmentFailed, match="failed in all 2 episodes"):
        play_episodes(limited(given, retries=1), tasks(2), range(1), BatchSampling(DownwardBatches()))


def test_retries_are_set_only_where_attempts_are_played_again() -> None:
    assert EpisodeConfig(failed="retry", retries=5).retries == 5
    assert EpisodeConfig().failed == "drop"
    with pytest.raises(ValidationError, match="retries: 5; it is only for failed: retry, not drop"):
        EpisodeConfig(retries=5)
