"""Slow, failing and hanging environments, while other episodes are played."""

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.environments.interface import ScorerFailed, Task, Timing, Transition
from erl_pipeline.environments.messages import AssistantTurn, ToolSchema, user_message
from erl_pipeline.environments.threads import in_threads
from erl_pipeline.episodes.attempt import play_attempt
from erl_pipeline.episodes.context import EpisodeContext, TurnKey
from erl_pipeline.episodes.play import BatchSampling, ConcurrentSampling, play_episodes
from erl_pipeline.episodes.roles import trainable
from erl_pipeline.stages.rollouts.counts import attempts_not_scored
from erl_pipeline.stages.training.advantages import starts_turn
from storage.errors import EnvironmentFailed, Interrupted
from storage.tables.trajectories import Trajectory, read_trajectories, write_trajectories
from tests.erl_pipeline.episodes.engines import DownwardBatches, DownwardTurns, answer_to
from tests.erl_pipeline.episodes.scripted_environment import Scripted, ends, goes_on, scripted, tasks

TIMINGS: list[Timing] = ["instant", "waiting"]


async def never(*_: object) -> Any:
    await asyncio.Event().wait()


async def raises(*_: object) -> Any:
    raise KeyError("no such page")


async def exits(*_: object) -> Any:
    sys.exit("no licence")


def in_second(method: str, does: Callable[..., Awaitable[Any]]) -> Callable[[Task], Scripted]:
    """Environments, the second of which does this in a method."""

    def make(task: Task) -> Scripted:
        told: dict[str, Any] = {method: does} if task.task_id == "t1" else {}
        return Scripted(**told)

    return make


def not_scored(rows: Sequence[Trajectory]) -> dict[str, int]:
    """The counters of attempts that were not scored, without those that are 0."""
    return {name: count for name, count in attempts_not_scored(rows).items() if count}


def outcome(row: Trajectory) -> tuple[str, float, bool, str, str]:
    return row.task_id, row.reward, row.success, row.finish_reason, row.feedback


@pytest.mark.parametrize("engine", ["batches", "turns"])
def test_a_slow_step_stalls_no_other_episode(engine: str) -> None:
    """The first episode's step returns only when all other episodes are over."""
    others_over = asyncio.Event()
    ended: list[str] = []

    async def waits(turn: AssistantTurn) -> Transition:
        await others_over.wait()
        return ends()

    def on_episode(rows: list[Trajectory]) -> None:
        ended.append(rows[0].task_id)
        if len(ended) == 3:
            others_over.set()

    given, _ = scripted(lambda task: Scripted(on_step=waits if task.task_id == "t0" else None), "waiting")
    sampling = (
        BatchSampling(DownwardBatches()) if engine == "batches" else ConcurrentSampling(DownwardTurns(), 4)
    )
    played = play_episodes(given, tasks(4), range(1), sampling, on_episode=on_episode)

    assert ended[-1] == "t0"
    assert sorted(ended[:3]) == ["t1", "t2", "t3"]
    assert [row.task_id for row in played.rows if row.role == "first_attempt"] == ["t0", "t1", "t2", "t3"]
    assert played.determinism == "approximate"


def test_environments_go_on_while_the_engine_is_at_work() -> None:
    """The engine answers its first batch only after a step was taken in the event loop at the same time."""
    batch_begun, stepped = threading.Event(), threading.Event()

    class Engine:
        policy_version = "policy-1"

        def __init__(self) -> None:
            self.calls = 0

        def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
            self.calls += 1
            if self.calls == 1:
                batch_begun.set()
                assert stepped.wait(timeout=60.0)
            return [answer_to(request) for request in requests]

    async def begins() -> str:
        while not batch_begun.is_set():
            await asyncio.sleep(0.001)
        stepped.set()
        return "@ &"

    given, _ = scripted(lambda task: Scripted(on_reset=begins if task.task_id == "t0" else None), "waiting")
    assert len(play_episodes(given, tasks(3), range(1), BatchSampling(Engine())).rows) == 9


def test_a_blocking_environment_in_a_thread_stalls_no_other_episode() -> None:
    others_over = threading.Event()
    ended: list[str] = []

    class Blocking:
        instructions: str = ""
        tools: Sequence[ToolSchema] = ()

        def __init__(self, task: Task) -> None:
            self._waits = task.task_id == "t0"

        def reset(self) -> str:
            return "@ &"

        def step(self, turn: AssistantTurn) -> Transition:
            assert not self._waits or others_over.wait(timeout=60.0)
            return ends()

        def feedback(self) -> str:
            return "fell"

        def trace(self) -> str:
            return "down b"

        def close(self) -> None: ...

    def on_episode(rows: list[Trajectory]) -> None:
        ended.append(rows[0].task_id)
        if len(ended) == 2:
            others_over.set()

    given, _ = scripted(lambda task: in_threads(Blocking(task)), "waiting")
    played = play_episodes(given, tasks(3), range(1), BatchSampling(DownwardBatches()), on_episode=on_episode)
    assert ended[-1] == "t0"
    assert {row.finish_reason for row in played.rows if "attempt" in row.role} == {"done"}


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize(
    ("method", "does", "text"),
    [
        ("on_reset", raises, "reset: KeyError: 'no such page'"),
        ("on_step", raises, "step: KeyError: 'no such page'"),
        ("on_feedback", raises, "feedback: KeyError: 'no such page'"),
        ("on_step", exits, "step: SystemExit: no licence"),
    ],
)
def test_what_raises_ends_its_episode_as_data(timing: Timing, method: str, does: Any, text: str) -> None:
    given, opened = scripted(in_second(method, does), timing)
    played = play_episodes(given, tasks(3), range(1), BatchSampling(DownwardBatches()))

    failed = [row for row in played.rows if row.task_id == "t1"]
    assert [outcome(row) for row in failed] == [("t1", 0.0, False, "environment_error", text)]
    assert len([row for row in played.rows if row.task_id != "t1"]) == 6
    assert not_scored(played.rows) == {"environment_errors": 1}
    assert [environment.closed for environment in opened] == [1, 1, 1]
    for row in played.rows:
        row.validate()


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("method", ["on_reset", "on_step", "on_feedback"])
def test_what_never_returns_ends_its_episode_at_the_deadline(timing: Timing, method: str) -> None:
    given, opened = scripted(in_second(method, never), timing, step_seconds=0.05)
    played = play_episodes(given, tasks(3), range(1), BatchSampling(DownwardBatches()))

    text = f"{method.removeprefix('on_')} did not return within 0.05 seconds"
    failed = [row for row in played.rows if row.task_id == "t1"]
    assert [outcome(row) for row in failed] == [("t1", 0.0, False, "environment_timeout", text)]
    assert not_scored(played.rows) == {"environment_timeouts": 1}
    assert [environment.closed for environment in opened] == [1, 1, 1]


async def cannot_be_scored(turn: AssistantTurn) -> Transition:
    raise ScorerFailed("it gave nan")


def test_an_attempt_that_cannot_be_scored_says_so_and_is_not_trained() -> None:
    given, _ = scripted(lambda task: Scripted(on_step=cannot_be_scored if task.task_id == "t1" else None))
    played = play_episodes(given, tasks(3), range(1), BatchSampling(DownwardBatches()))
    failed = [row for row in played.rows if row.task_id == "t1"]
    text = "step: ScorerFailed: it gave nan"
    assert [outcome(row) for row in failed] == [("t1", 0.0, False, "scorer_error", text)]
    assert not_scored(played.rows) == {"scorer_errors": 1}
    assert [row.task_id for row in trainable(played.rows)] == ["t0"] * 3 + ["t2"] * 3


def test_an_attempt_that_had_reward_loses_it_when_a_later_step_fails() -> None:
    async def good_then_bad(turn: AssistantTurn) -> Transition:
        environment = opened[0]
        if len(environment.said) == 2:
            raise RuntimeError
        return Transition(goes_on().messages, 0.5, done=False, metrics={"moves": 1.0})

    given, opened = scripted(lambda task: Scripted(on_step=good_then_bad if task.task_id == "t0" else None))
    rows = play_episodes(given, tasks(2), range(1), BatchSampling(DownwardBatches())).rows
    assert outcome(rows[0]) == ("t0", 0.0, False, "environment_error", "step: RuntimeError")
    assert len(rows[0].response_token_ids) == 3 + 4 + 3  # two turns and the observation between them
    assert (rows[0].turn_rewards, rows[1].turn_rewards) == (None, (0.0,))


def test_each_turn_has_its_reward() -> None:
    async def good_then_better(turn: AssistantTurn) -> Transition:
        if len(opened[0].said) == 2:
            return ends(0.25)
        return Transition(goes_on().messages, 0.5, done=False)

    given, opened = scripted(lambda task: Scripted(on_step=good_then_better))
    row = play_episodes(given, tasks(1), range(1), BatchSampling(DownwardBatches())).rows[0]
    assert (row.turn_rewards, row.reward) == ((0.5, 0.25), 0.75)
    assert sum(starts_turn(row.response_mask)) == 2


@pytest.mark.parametrize(
    ("transition", "text"),
    [
        (Transition([], float("nan"), True), "step: ValueError: the reward is nan, not a finite number"),
        (Transition([], 0.0, True, {"m": float("inf")}), "the metric 'm' is inf, not a finite number"),
        (Transition([], 1e39, True), "the reward is 1e+39; allowed are numbers up to 1e+30"),
        (Transition([{"role": "user", "content": 7}], 0.0, False), "message with texts alone"),  # type: ignore[typeddict-item]
        (Transition([{"role": "system", "content": "x"}], 0.0, False), "is no user or tool message"),
    ],
)
def test_what_no_row_could_hold_is_an_error_of_the_environment(transition: Transition, text: str) -> None:
    async def gives(turn: AssistantTurn) -> Transition:
        return transition

    given, _ = scripted(lambda task: Scripted(on_step=gives if task.task_id == "t0" else None))
    row = play_episodes(given, tasks(2), range(1), BatchSampling(DownwardBatches())).rows[0]
    assert row.finish_reason == "environment_error"
    assert text in row.feedback


def test_texts_of_an_environment_are_made_storable_and_counted(tmp_path: Path) -> None:
    async def says(turn: AssistantTurn) -> Transition:
        return Transition([], 1.0, done=True, metrics={"\udc80": 2.0})

    async def praises() -> str:
        return "well \ud83d done"

    async def fails() -> str:
        raise ValueError("no \ud800 there")

    def make(task: Task) -> Scripted:
        return Scripted(on_step=says, on_feedback=fails if task.task_id == "t0" else praises)

    given, _ = scripted(make)
    played = play_episodes(given, tasks(3), range(1), BatchSampling(DownwardBatches()))
    assert write_trajectories(tmp_path / "rows.parquet", played.rows) == 3
    rows = read_trajectories([tmp_path / "rows.parquet"])
    assert [row.feedback for row in rows] == [
        "feedback: ValueError: no \ufffd there",
        "well \ufffd done",
        "well \ufffd done",
    ]
    assert [row.metrics for row in rows] == ['{"\\ufffd": 2.0}'] * 3
    # Three names of a metric, two feedbacks and one error.
    assert played.counters == {"replaced_texts": 6}
    assert [row.finish_reason for row in rows] == ["environment_error", "done", "done"]


@pytest.mark.parametrize("closing", [raises, exits, never])
def test_a_close_that_fails_is_only_counted(closing: Any) -> None:
    given, _ = scripted(lambda task: Scripted(on_close=closing), step_seconds=0.05)
    played = play_episodes(given, tasks(2), range(1), BatchSampling(DownwardBatches()))
    assert len(played.rows) == 6
    assert played.counters == {"environment_close_failures": 2}


def test_when_all_episodes_fail_the_call_does() -> None:
    given, _ = scripted(lambda task: Scripted(on_step=raises))
    message = (
        r"the environment frozen_lake failed in all 4 episodes; in the first, of task t0: step: KeyError: "
        r"'no such page' \(test_environments_that_wait\.py, line \d+\)"
    )
    with pytest.raises(EnvironmentFailed, match=message):
        play_episodes(given, tasks(2), range(2), BatchSampling(DownwardBatches()))


@pytest.mark.parametrize("error", [OSError("no container"), SystemExit("no container")])
def test_an_environment_that_cannot_be_opened_is_data_too(error: BaseException) -> None:
    def make(task: Task) -> Scripted:
        if task.task_id == "t0":
            raise error
        return Scripted()

    given, _ = scripted(make)
    rows = play_episodes(given, tasks(2), range(1), BatchSampling(DownwardBatches())).rows
    text = f"reset: {type(error).__name__}: no container"
    assert outcome(rows[0])[3:] == ("environment_error", text)
    assert (rows[0].prompt_token_ids, rows[0].response_token_ids, rows[0].messages) == ((), (), "[]")


def test_a_task_within_that_was_cancelled_does_not_pass_for_a_stopped_run() -> None:
    async def cancelled(turn: AssistantTurn) -> Transition:
        raise asyncio.CancelledError

    given, _ = scripted(lambda task: Scripted(on_step=cancelled if task.task_id == "t0" else None))
    rows = play_episodes(given, tasks(2), range(1), BatchSampling(DownwardBatches())).rows
    assert outcome(rows[0])[3:] == ("environment_error", "step: CancelledError")


@pytest.mark.parametrize("timing", TIMINGS)
def test_a_stopped_run_waits_for_no_environment_and_closes_them(timing: Timing) -> None:
    stop = threading.Event()

    async def stops_the_run(turn: AssistantTurn) -> Transition:
        stop.set()
        await asyncio.Event().wait()
        return ends()

    given, opened = scripted(lambda task: Scripted(on_step=stops_the_run), timing)
    with pytest.raises(Interrupted):
        play_episodes(given, tasks(2), range(1), BatchSampling(DownwardBatches()), stop=stop)
    assert [environment.closed for environment in opened] == [1, 1]


def test_metrics_of_turns_become_those_of_the_attempt() -> None:
    async def steps(turn: AssistantTurn) -> Transition:
        return goes_on(moves=2.0, speed=1.0) if len(opened[0].said) == 1 else ends(moves=3.0, speed=4.0)

    async def first_attempt(context: EpisodeContext) -> list[Trajectory]:
        place = TurnKey("first_attempt", phase=0)
        attempt = await play_attempt(context, place, lambda told, seen: [user_message(seen)])
        metrics.append(attempt.metrics)
        return [attempt.row(context, place, None)]

    metrics: list[Mapping[str, float]] = []
    given, opened = scripted(lambda task: Scripted(on_step=steps), mean_metrics=frozenset({"speed"}))
    play_episodes(
        replace(given, protocol=first_attempt), tasks(1), range(1), BatchSampling(DownwardBatches())
    )
    assert metrics == [{"moves": 5.0, "speed": 2.5}]
