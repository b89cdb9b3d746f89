"""The notes that a stream remembers, and its scores, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from realms.encounters import STREAMED_ATTEMPT, STREAMED_REFLECTION, STREAMED_RETRY
from realms.scores import StreamMemory, StreamScore, score_encounter, stream_metrics
from realms.tasks import StreamConfig, StreamedTask, lesson, other_realm, stream_tasks

from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig, RealmConfig
from erl_pipeline.environments.frozen_lake.tasks import TASKS
from erl_pipeline.environments.interface import Task
from storage.errors import InputError
from storage.tables.trajectories import Trajectory
from storage.texts import StorableTexts
from tests.erl_pipeline.episodes.script import play

REALMS = FrozenLakeConfig(actions="realms", realms=RealmConfig(training=3, held_out=3), training_boards=8)
(SOLVED,) = play(["right a", "right a"])[0]


def met(realm: int = 0, stream: int = 0, encounter: int = 1) -> StreamedTask:
    task = Task(f"task-{realm}-{stream}-{encounter}", f"realm-{realm}", "frozen_lake", {})
    return StreamedTask(task, realm, stream, encounter, lesson="d a b c", foreign="a b c d")


def row(role: str, condition: int, success: bool, text: str | None = None) -> Trajectory:
    return replace(
        SOLVED,
        trajectory_id=f"{role}-{condition}",
        role=role,
        sample_index=condition,
        success=success,
        text=text,
    )


def retried(condition: int, success: bool, text: str) -> list[Trajectory]:
    return [row(STREAMED_REFLECTION, condition, success, text), row(STREAMED_RETRY, condition, success)]


def test_each_stream_is_given_its_own_latest_note_that_helped() -> None:
    memory = StreamMemory()
    assert memory.notes(met()) == {"none": None, "own": None, "oracle": "d a b c", "other": "a b c d"}
    memory.remember(met(), [*retried(0, True, "? ? b ?"), *retried(1, True, "? a ? ?")])
    assert memory.notes(met(encounter=2))["own"] == "? a ? ?"
    memory.remember(met(encounter=2), retried(1, False, "? b ? ?"))
    assert memory.notes(met(encounter=3))["own"] == "? a ? ?"
    memory.remember(met(encounter=3), retried(1, True, "d a ? ?"))
    assert memory.notes(met(encounter=4))["own"] == "d a ? ?"
    assert memory.notes(met(stream=1))["own"] is None
    assert memory.notes(met(realm=1))["own"] is None


def test_the_streams_of_a_realm_take_turns_with_the_other_realms() -> None:
    assert [other_realm(0, stream, 3) for stream in range(4)] == [1, 2, 1, 2]
    assert [other_realm(2, stream, 3) for stream in range(4)] == [0, 1, 0, 1]
    assert all(other_realm(realm, stream, 8) != realm for realm in range(8) for stream in range(16))


def test_a_score_for_each_condition() -> None:
    task = met(stream=2, encounter=3)
    notes = {**StreamMemory().notes(task), "own": "? a ? ?"}
    rows = [
        row(STREAMED_ATTEMPT, number, success) for number, success in enumerate((False, True, True, False))
    ]
    rows += [*retried(0, False, "x"), *retried(1, True, "y"), *retried(2, True, "z")]
    rows.append(row(STREAMED_REFLECTION, 3, False))  # ill-formed
    scores = score_encounter(task, notes, rows)
    assert [
        (each.condition, each.note, each.first_attempt_success, each.retry_success) for each in scores
    ] == [
        ("none", None, False, False),
        ("own", "? a ? ?", True, True),
        ("oracle", "d a b c", True, True),
        ("other", "a b c d", False, False),
    ]
    assert (scores[1].realm, scores[1].stream, scores[1].encounter) == ("realm-0", 2, 3)
    assert scores[1].reflection_trajectory_id == f"{STREAMED_REFLECTION}-1"
    solved = [row(STREAMED_ATTEMPT, number, True) for number in range(4)]
    assert {each.retry_success for each in score_encounter(task, notes, solved)} == {None}


def test_what_was_not_scored_has_no_success() -> None:
    task = met(stream=2, encounter=3)
    failed = "environment_timeout"
    rows = [row(STREAMED_ATTEMPT, number, False) for number in range(4)]
    rows[2] = replace(rows[2], finish_reason=failed)
    rows += [replace(each, finish_reason=failed) for each in retried(0, False, "x")] + retried(1, True, "y")
    scores = score_encounter(task, StreamMemory().notes(task), rows)
    assert [(each.condition, each.first_attempt_success, each.retry_success) for each in scores] == [
        ("none", False, None),
        ("own", False, True),
        ("oracle", None, False),
        ("other", False, False),
    ]


def test_a_difference_is_over_the_tasks_that_were_scored_under_both_conditions() -> None:
    metrics = stream_metrics(
        [
            *(scored("none", encounter, encounter == 3, None) for encounter in (1, 2, 3, 4)),
            *(scored("own", encounter, True, None) for encounter in (1, 2, 3)),
            scored("own", 4, None, None),
        ]
    )
    # Of the late encounters 3 and 4, only 3 has both, and both succeeded there.
    assert (metrics["first_none"], metrics["first_own"], metrics["first_own_gain"]) == (0.5, 1.0, 0.0)


def scored(condition: str, encounter: int, first: bool | None, retry: bool | None) -> StreamScore:
    return StreamScore(condition, encounter, "realm", 0, f"task-{encounter}", None, first, retry, "t", None)


def test_the_second_half_of_the_encounters_counts() -> None:
    scores = [
        *(scored("none", encounter, False, encounter == 4) for encounter in (1, 2, 3, 4)),
        *(scored("own", encounter, encounter == 3, True) for encounter in (1, 2, 3, 4)),
    ]
    metrics = stream_metrics(scores)
    assert metrics["first_none"] == 0.0
    assert metrics["first_own"] == 0.5
    assert metrics["first_own_gain"] == 0.5
    assert (metrics["retry_none"], metrics["retry_own"], metrics["retry_own_gain"]) == (0.5, 1.0, 0.5)
    assert metrics["first_own_gain_low"] < 0.5 < metrics["first_own_gain_high"]
    assert "first_oracle" not in metrics


def test_nothing_retried_gives_no_rate_of_retries() -> None:
    metrics = stream_metrics([scored("none", 1, True, None), scored("own", 1, True, None)])
    assert set(metrics) == {
        *("first_none", "first_own", "first_own_gain", "first_own_gain_low", "first_own_gain_high")
    }


def test_streams_are_rows_of_tasks_in_held_out_realms() -> None:
    tasks = stream_tasks(REALMS, 0, StreamConfig(realms=2, streams=2, encounters=2), StorableTexts())
    places = [(each.realm, each.stream, each.encounter) for each in tasks]
    assert places == [
        *((0, 0, 1), (0, 0, 2), (0, 1, 1), (0, 1, 2)),
        *((1, 0, 1), (1, 0, 2), (1, 1, 1), (1, 1, 2)),
    ]
    assert [each.task.payload["realm"] for each in tasks] == ["r3"] * 4 + ["r4"] * 4
    assert len({each.task.task_id for each in tasks}) == 8
    assert {each.lesson for each in tasks[:4]} == {each.foreign for each in tasks[4:]}
    assert tasks[0].lesson != tasks[4].lesson


def test_an_environment_without_so_many_realms_is_refused() -> None:
    with pytest.raises(InputError, match="4 realms are asked for, but the environment holds 3 out"):
        stream_tasks(REALMS, 0, StreamConfig(realms=4), StorableTexts())
    with pytest.raises(InputError, match="holds 0 out"):
        stream_tasks(FrozenLakeConfig(), 0, StreamConfig(), StorableTexts())


def test_streams_are_on_held_out_boards_none_of_which_is_trained_on() -> None:
    tasks = [
        each.task for each in stream_tasks(REALMS, 0, StreamConfig(realms=2, streams=3), StorableTexts())
    ]
    boards = [tuple(task.payload["board"]) for task in tasks]
    assert len(set(boards)) == 2 * 3 * 6
    assert boards == [tuple(task.payload["board"]) for task in TASKS.held_out_tasks(REALMS, 0, 36)]
    assert not set(boards) & {tuple(task.payload["board"]) for task in TASKS.training_tasks(REALMS, 0)}


def test_the_lesson_of_a_realm_is_its_permutation() -> None:
    payload = {"actions": {"a": "left", "b": "up", "c": "right", "d": "down"}, "realm": "r3"}
    task = Task("task", "frozen_lake-r3", "frozen_lake", payload)
    assert lesson(REALMS, task) == "b c d a"  # up, right, down, left
    prose = REALMS.model_copy(update={"format": "prose"})
    assert lesson(prose, task) == (
        "In realm r3 the action [a] moves left, [b] moves up, [c] moves right, [d] moves down."
    )
