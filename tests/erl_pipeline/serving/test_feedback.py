"""What people say about answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storage.serving.traffic import EpisodeEnd, Feedback
from tests.erl_pipeline.serving.served import Scripted, Served


def test_feedback_is_logged_with_its_reward_and_the_same_again_is_logged_once(tmp_path: Path) -> None:
    async def use(served: Served) -> None:
        _, told = await served.chat("hi", metadata={"user": "anna"})
        call, episode = told["x-erl-call-id"], told["x-erl-episode-id"]
        said: list[dict[str, Any]] = [
            {"call_id": call, "metric": "stars", "value": 2, "source": "app", "idempotency_key": "k"},
            {"call_id": call, "metric": "stars", "value": 2, "source": "app", "idempotency_key": "k"},
            {"episode_id": episode, "metric": "thumbs", "value": "down"},
            {"episode_id": episode, "metric": "comment", "value": "too long"},
            {"call_id": call, "metric": "correction", "value": "hello"},
        ]
        answers = [await served.post("/erl/v1/feedback", each) for each in said]
        assert {status for status, _, _ in answers} == {200}
        assert answers[0][1] == answers[1][1]
        stars, thumbs, comment, correction = [r for r in await served.logged() if isinstance(r, Feedback)]
        assert stars.feedback_id == answers[0][1]["feedback_id"]
        assert (stars.reward, stars.call_id, stars.episode_id, stars.source) == (0.25, call, episode, "app")
        assert (thumbs.reward, thumbs.call_id, comment.reward, correction.value) == (0.0, None, None, "hello")
        assert len(stars.user) == 32

    Scripted(tmp_path).use(use)


@pytest.mark.parametrize(
    ("changed", "status", "says"),
    [
        ({"metric": "likes"}, 400, "likes is not declared; allowed: thumbs, stars, comment, correction"),
        ({"value": "sideways"}, 400, "allowed: up, down"),
        ({"metric": "stars", "value": 7}, 400, "a number from 1 to 5"),
        ({"metric": "stars", "value": True}, 400, "value"),
        ({"metric": "comment", "value": 1}, 400, "a comment is a text"),
        ({"call_id": None, "episode_id": "e", "metric": "correction", "value": "x"}, 400, "name the call"),
        ({"episode_id": "e"}, 400, "either call_id or episode_id"),
        ({"call_id": "chatcmpl-0"}, 404, "there is no call chatcmpl-0"),
        ({"call_id": None, "episode_id": "f"}, 404, "there is no episode f"),
        ({"score": 1}, 400, "score"),
    ],
)
def test_wrong_feedback_is_refused_and_not_logged(
    tmp_path: Path, changed: dict[str, Any], status: int, says: str
) -> None:
    async def use(served: Served) -> None:
        _, told = await served.chat("hi", metadata={"episode_id": "e"})
        given = {"call_id": told["x-erl-call-id"], "metric": "thumbs", "value": "up", **changed}
        found, body, _ = await served.post("/erl/v1/feedback", given)
        assert found == status
        assert says in body["error"]["message"]
        assert len(await served.logged()) == 1

    Scripted(tmp_path).use(use)


def test_another_tenant_knows_neither_calls_nor_episodes(tmp_path: Path) -> None:
    async def use(served: Served) -> None:
        _, told = await served.chat("hi", metadata={"episode_id": "e"})
        for given in ({"call_id": told["x-erl-call-id"]}, {"episode_id": "e"}):
            body = {**given, "metric": "thumbs", "value": "up"}
            assert (await served.post("/erl/v1/feedback", body, "key-b"))[0] == 404
        assert (await served.post("/erl/v1/episodes/e/close", {}, "key-b"))[0] == 404
        assert (await served.post("/erl/v1/feedback", {}, "guessed"))[0] == 401

    Scripted(tmp_path).use(use)


def test_an_episode_that_was_closed_gets_feedback_but_no_calls(tmp_path: Path) -> None:
    async def use(served: Served) -> None:
        await served.chat("hi", metadata={"episode_id": "e/{1}"})
        for _ in range(2):
            assert (await served.post("/erl/v1/episodes/e%2F%7B1%7D/close", {}))[0] == 200
        body = {"messages": [{"role": "user", "content": "hi"}], "metadata": {"episode_id": "e/{1}"}}
        status, refused, _ = await served.post("/v1/chat/completions", body)
        assert (status, refused["error"]["code"]) == (400, "episode_closed")
        late = {"episode_id": "e/{1}", "metric": "thumbs", "value": "up"}
        assert (await served.post("/erl/v1/feedback", late))[0] == 200
        assert sum(isinstance(record, EpisodeEnd) for record in await served.logged()) == 1

    Scripted(tmp_path).use(use)


def test_a_later_server_knows_what_an_earlier_one_has_logged(tmp_path: Path) -> None:
    ids: list[str] = []

    async def earlier(served: Served) -> None:
        _, told = await served.chat("hi", metadata={"episode_id": "e", "user": "anna"})
        given = {"episode_id": "e", "metric": "thumbs", "value": "up", "idempotency_key": "k"}
        ids.extend((told["x-erl-call-id"], (await served.post("/erl/v1/feedback", given))[1]["feedback_id"]))

    async def later(served: Served) -> None:
        given = {"episode_id": "e", "metric": "thumbs", "value": "up", "idempotency_key": "k"}
        assert (await served.post("/erl/v1/feedback", given))[1] == {"feedback_id": ids[1]}
        of_a_call = {"call_id": ids[0], "metric": "thumbs", "value": "up"}
        status, refused, _ = await served.post("/erl/v1/feedback", {**of_a_call, "idempotency_key": "k"})
        assert (status, refused["error"]["code"]) == (409, "idempotency_key_reused")
        assert (await served.post("/erl/v1/feedback", {**of_a_call, "idempotency_key": "other"}))[0] == 200
        _, told = await served.chat("hi", "one after 21", "on", metadata={"episode_id": "e", "user": "anna"})
        assert told["x-erl-episode-id"] == "e"
        assert len(await served.logged()) == 4

    Scripted(tmp_path).use(earlier)
    Scripted(tmp_path).use(later)
