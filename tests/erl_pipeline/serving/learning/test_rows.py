"""Rows of served episodes."""

import json
from typing import Any

import pytest

from erl_pipeline.serving.learning.rows import Batch, EpisodeRows, episode_rows
from storage.serving.traffic import Record
from tests.erl_pipeline.serving.learning.served_traffic import at, rating, turn

BATCH = Batch("artifact", 3, "first_attempt", 0.75, lambda _: None)


def rows(*records: Record, batch: Batch = BATCH) -> EpisodeRows:
    return episode_rows(batch, "episode", records)


def test_the_reward_is_the_mean_of_the_newest_value_of_each_call_and_metric() -> None:
    stars: dict[str, Any] = {"metric": "stars"}
    (row,) = rows(
        turn("a"),
        rating("1", 0.0, received=at(1)),
        rating("2", 1.0, received=at(5)),
        rating("3", 0.5, **stars),
        rating("4", 0.75, call_id="call-a", **stars),
        rating("5", None, metric="comment", value="too long"),
    ).trajectories

    assert row.reward == pytest.approx((1.0 + 0.5 + 0.75) / 3)
    assert (row.success, row.finish_reason, row.feedback) == (True, "done", "too long")


def test_a_reward_below_the_threshold_is_no_success() -> None:
    (row,) = rows(turn("a"), rating("1", 0.5)).trajectories

    assert (row.reward, row.success) == (0.5, False)


def test_what_cannot_be_learned_from_is_not_scored() -> None:
    held_out = Batch("artifact", 3, "first_attempt", 1.0, lambda said: "the held-out task 7")
    for found, finish, why in (
        (rows(turn("a")), "not_rated", "nobody rated it"),
        (rows(turn("a", not_trainable="top_p"), rating("1", 1.0)), "not_trainable", "top_p"),
        (
            rows(turn("a"), rating("1", 1.0), batch=held_out),
            "not_trainable",
            "it asks the held-out task 7",
        ),
    ):
        assert not found.is_scored
        assert (found.trajectories[0].finish_reason, found.served[0].not_trainable) == (finish, why)


def test_a_sequence_that_is_trained_stands_for_its_episode() -> None:
    other = turn("b", arrived=at(1), call_id="call-2")

    found = rows(turn("a", not_trainable="top_p"), other, rating("1", 1.0))

    first, further = found.trajectories
    assert (first.response_mask, further.response_mask) == ((1, 1), (0, 0))
    assert further.parent_trajectory_id == first.trajectory_id
    assert [each.turn_ids for each in found.served] == [("b",), ("a",)]
    assert [each.not_trainable for each in found.served] == ["", "top_p"]


def test_a_row_says_what_traffic_it_is_from() -> None:
    again = turn("b", after="a", call_id="call-a")

    found = rows(turn("a"), again, rating("1", 1.0))

    (row,), (served,) = found.trajectories, found.served
    assert (row.iteration, row.role, row.task_type, row.environment) == (3, "first_attempt", "chat", "served")
    assert (row.policy_version, row.temperature, row.seed) == ("policy", 1.0, 7)
    assert served.trajectory_id == row.trajectory_id
    assert (served.call_ids, served.feedback_ids) == (("call-a",), ("1",))
    assert (served.episode_id, served.user, served.tenant, served.alias) == ("e", "u1", "acme", "production")


def test_messages_are_the_json_of_roles_and_texts() -> None:
    asked = 'a "quote", a \\, a line\nbreak, \x07, \u2028, ü and 🙂'
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}

    (row,) = rows(turn("a", messages=({"role": "user", "content": asked},), answer=answer)).trajectories

    said = [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": 'weather({"city": "Ulm"})'},
    ]
    assert row.messages == json.dumps(said, ensure_ascii=False)
