"""What the address gets from clients that are unknown, too many, or hostile."""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.serving.keys import Client, ClientKey, read_keys
from storage.errors import ConfigError
from tests.erl_pipeline.serving.served import HeldAnswers, Scripted, Served

HI: Any = {"messages": [{"role": "user", "content": "hi"}]}


def test_malformed_requests_get_an_error_and_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Bodies with a byte changed, cut off, or values of other types in them; good ones are still answered.
    ERL_TEST_MALFORMED sets how many."""
    draw = random.Random(0)
    good = {
        "/v1/chat/completions": {
            **HI,
            "tools": None,
            "n": 1,
            "stop": ["x"],
            "max_tokens": 5,
            "seed": 1,
            "temperature": 0.5,
            "top_p": 1,
            "store": True,
            "user": "anna",
            "metadata": {"episode_id": "e", "user": "anna", "task_type": "talk"},
        },
        "/erl/v1/feedback": {
            "episode_id": "e",
            "metric": "thumbs",
            "value": "up",
            "source": "app",
            "idempotency_key": "k",
        },
        "/erl/v1/episodes/f/close": {},
    }
    values: list[Any] = [None, -1, 1e400, "x", [], {}, [[]], True, {"user": 5}, "\ud800", 2**70, "x" * 300]

    def malformed(fields: Any) -> bytes:
        body = json.dumps(fields).encode()
        kind = draw.randrange(3)
        if kind == 0:
            place = draw.randrange(len(body))
            return body[:place] + bytes([draw.randrange(256)]) + body[place + 1 :]
        if kind == 1 or not fields:
            return body[: draw.randrange(len(body))]
        return json.dumps({**fields, draw.choice(list(fields)): draw.choice(values)}).encode()

    async def use(served: Served) -> None:
        await served.chat("hi", metadata={"episode_id": "e", "user": "anna"})
        statuses = set()
        for _ in range(int(os.environ.get("ERL_TEST_MALFORMED", "400"))):
            path = draw.choice(list(good))
            statuses.add((await served.post(path, malformed(good[path])))[0])
        assert statuses == {200, 400, 404}
        assert (await served.post("/v1/chat/completions", HI))[0] == 200
        assert served.service.under_way == 0

    Scripted(tmp_path).use(use)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_what_is_not_there_and_bodies_that_cannot_be_read_are_errors_in_json(tmp_path: Path) -> None:
    async def use(served: Served) -> None:
        for path, status in (("/v1/completions", 404), ("/v1/models", 405)):
            found, body, _ = await served.post(path, HI)
            assert (found, body["error"]["code"]) == (status, None)
        headers = {"Authorization": "Bearer key-a", "Content-Encoding": "gzip"}
        url = f"{served.url}/v1/chat/completions"
        async with served.http.post(url, data=b"no gzip", headers=headers) as answer:
            assert answer.status == 400
        status, body, _ = await served.post("/v1/chat/completions", b"x" * (17 * 2**20))
        assert (status, body["error"]["message"]) == (413, "a body may have at most 16777216 bytes")

    Scripted(tmp_path).use(use)


def test_the_models_are_the_aliases_and_a_wrong_key_gets_nothing(tmp_path: Path) -> None:
    async def use(served: Served) -> None:
        async with served.openai() as client:
            assert [model.id async for model in client.models.list()] == ["production"]
        status, body, _ = await served.post("/v1/chat/completions", HI, "guessed")
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        health = await served.health()
        assert health["status"] == "ok"
        assert health["aliases"]["production"]["checkpoint"] == "one"

    Scripted(tmp_path).use(use)


def test_a_key_may_call_so_often_a_minute(tmp_path: Path) -> None:
    async def use(served: Served) -> None:
        assert [(await served.post("/v1/chat/completions", HI))[0] for _ in range(2)] == [200, 200]
        status, body, answer = await served.post("/v1/chat/completions", HI)
        assert (status, body["error"]["code"]) == (429, "rate_limited")
        assert 1 <= int(answer.headers["Retry-After"]) <= 30
        assert (await served.post("/v1/chat/completions", HI, "key-b"))[0] == 200

    limited = {"key-a": ClientKey(tenant="a", requests_per_minute=2), "key-b": ClientKey(tenant="b")}
    Scripted(tmp_path, keys=limited).use(use)


def test_a_client_is_never_told_to_come_again_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 2 of 2.4 seconds it would be refused once more."""

    async def use(served: Served) -> None:
        for seconds, told in ((2.4, "3"), (2.0, "2"), (0.1, "1")):
            monkeypatch.setattr(Client, "seconds_to_wait", lambda _, wait=seconds: wait)
            _, _, answer = await served.post("/v1/chat/completions", HI)
            assert answer.headers["Retry-After"] == told

    Scripted(tmp_path).use(use)


def test_calls_come_back_as_time_goes_on() -> None:
    now = 0.0
    client = Client(ClientKey(tenant="a", requests_per_minute=6), lambda: now)
    assert [client.seconds_to_wait() for _ in range(7)] == [0.0] * 6 + [10.0]
    now = 10.0
    assert [client.seconds_to_wait() for _ in range(2)] == [0.0, 10.0]


def test_no_more_calls_are_under_way_than_allowed(tmp_path: Path) -> None:
    held = HeldAnswers()

    async def use(served: Served) -> None:
        first = asyncio.create_task(served.post("/v1/chat/completions", HI))
        await held.begun.wait()
        status, body, _ = await served.post("/v1/chat/completions", HI)
        assert (status, body["error"]["code"]) == (429, "too_many_calls")
        held.go_on.set()
        assert (await first)[0] == 200

    Scripted(tmp_path, {"limits": {"in_flight": 1}}, says=held).use(use)


def test_each_answer_that_a_call_asks_for_counts(tmp_path: Path) -> None:
    """Room for three: two of one call leave no room for two more, but for one; four never have room."""
    held = HeldAnswers()

    async def use(served: Served) -> None:
        first = asyncio.create_task(served.post("/v1/chat/completions", {**HI, "n": 2}))
        await held.begun.wait()
        refused = served.post("/v1/chat/completions", {**HI, "n": 2})
        status, body, _ = await asyncio.wait_for(refused, 10)
        assert (status, body["error"]["code"]) == (429, "too_many_calls")
        assert "3 answers, and 2 are" in body["error"]["message"]
        status, body, _ = await served.post("/v1/chat/completions", {**HI, "n": 4})
        assert (status, body["error"]["param"]) == (400, "n")
        second = asyncio.create_task(served.post("/v1/chat/completions", HI))
        held.go_on.set()
        assert [(await each)[0] for each in (first, second)] == [200, 200]
        assert (await served.post("/v1/chat/completions", {**HI, "n": 3}))[0] == 200

    Scripted(tmp_path, {"limits": {"in_flight": 3}}, says=held).use(use)


def test_keys_are_read_from_a_file_and_its_mistakes_are_said(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    # The SHA-256 of "key-a".
    digest = "f10f781241e2246678b6b45c857069208152a53863e47fac33f607ab405006f4"
    path.write_text(f"{digest}: {{tenant: a, requests_per_minute: 5}}\n")
    ring, made = read_keys(path)
    client = ring.client("key-a")
    assert client is not None
    assert (client.tenant, ring.client("key-b"), made) == ("a", None, None)

    path.write_text(f"{digest}: {{tenant: a, requests: 5}}\nkey-b: {{tenant: b}}\n")
    with pytest.raises(ConfigError) as problems:
        read_keys(path)
    assert "line 1" in str(problems.value)
    assert "line 2" in str(problems.value)


@pytest.mark.parametrize("tenant", ["|\n    acme", '"a\\nb"', '"a\\x7f"'])
def test_a_tenant_has_no_control_characters(tenant: str, tmp_path: Path) -> None:
    """With a line feed at its end all its episodes would be one."""
    path = tmp_path / "keys.yaml"
    path.write_text(f"{'0' * 64}:\n  tenant: {tenant}\n")
    with pytest.raises(ConfigError, match=r"line 2: .*tenant"):
        read_keys(path)


def test_without_a_file_there_is_one_key_that_is_new_each_time() -> None:
    ring, made = read_keys(None)
    assert made is not None
    client = ring.client(made)
    assert client is not None
    assert client.tenant == "local"
    assert read_keys(None)[1] != made
