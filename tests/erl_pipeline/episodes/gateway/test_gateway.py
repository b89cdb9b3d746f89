"""What the gateway's address gets from clients that are wrong, slow, gone or hostile."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.environments.interface import AgentLimits
from erl_pipeline.environments.messages import Message
from erl_pipeline.episodes.dialogue import ChatTokenizer
from erl_pipeline.episodes.gateway.equal_calls import MOST_UNHEARD
from erl_pipeline.episodes.gateway.server import Gateway
from erl_pipeline.episodes.gateway.session import AgentSession, AskedPolicy
from tests.erl_pipeline.episodes.test_dialogue import chatml_tokenizer, end_ids, said

TOKENIZER = chatml_tokenizer()
GOOD = {"messages": [{"role": "user", "content": "go"}]}


class Client:
    def __init__(self, session: AgentSession, http: aiohttp.ClientSession, url: str, key: str) -> None:
        self.session, self._http, self._url, self._key = session, http, url, key

    async def post(
        self, body: object, key: str | None = None, path: str = "chat/completions", **headers: str
    ) -> tuple[int, Any, aiohttp.ClientResponse]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {key or self._key}", **headers}
        async with self._http.post(f"{self._url}/{path}", data=data, headers=sent) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text.startswith("{") else text, answer


def served(
    use: Callable[[Client], Awaitable[None]],
    answer: Callable[[], Awaitable[Generation]] | None = None,
    calls: int = 10_000,
) -> None:
    """Serve one attempt of so many calls, whose policy says `up`, and use it."""

    async def ask(asked: GenerationRequest) -> Generation:
        return await answer() if answer is not None else said(TOKENIZER, "up<|im_end|>")

    async def unchanged(messages: Any, _tools: object) -> list[Message]:
        return list(messages)

    async def run() -> None:
        policy = AskedPolicy(
            ChatTokenizer(TOKENIZER), 2000, end_ids(TOKENIZER), "policy", 1.0, 8, 0, "episode", ask
        )
        session = AgentSession(policy, AgentLimits(60.0, calls, 10_000), unchanged)
        async with (
            Gateway() as gateway,
            gateway.serving(session, 0, 60.0) as endpoint,
            aiohttp.ClientSession() as http,
        ):
            await use(Client(session, http, endpoint.base_url, endpoint.api_key))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"logprobs": True}, "logprobs"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"n": 0}, "n"),
        ({"stop": ["", "x"]}, "stop"),
        ({"messages": []}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages.0.content.0.type",
        ),
        ({"messages": [{"role": "wizard", "content": "go"}]}, "messages"),
    ],
)
def test_what_would_change_the_distribution_is_refused_by_name(changed: dict[str, Any], field: str) -> None:
    async def use(client: Client) -> None:
        status, body, answer = await client.post({**GOOD, **changed})
        assert status == 400
        assert body["error"]["param"].startswith(field)
        assert answer.headers["x-should-retry"] == "false"
        assert client.session.calls == 0

    served(use)


def test_messages_that_the_tokenizer_refuses_get_its_reason_and_the_next_call_an_answer() -> None:
    async def use(client: Client) -> None:
        status, body, answer = await client.post(
            {"messages": [{"role": "user", "content": "no token: \u00e9"}]}
        )
        assert (status, body["error"]["param"]) == (400, "messages")
        assert "a word is not in its vocabulary" in body["error"]["message"]
        assert answer.headers["x-should-retry"] == "false"
        assert (await client.post(GOOD))[0] == 200
        assert client.session.refused == 1

    served(use)


def test_equal_calls_that_fail_together_are_all_refused_though_not_all_of_them_are_kept() -> None:
    faults: list[dict[str, Any]] = []

    async def fails() -> Generation:
        await asyncio.sleep(0.5)
        raise RuntimeError("the engine died")

    async def use(client: Client) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        answers = await asyncio.gather(*(client.post(GOOD) for _ in range(MOST_UNHEARD + 6)))
        assert {status for status, _, _ in answers} == {403}
        client.session.failed.exception()

    served(use, fails, calls=2)
    assert faults == []


FUNCTION: Any = {"name": "search", "parameters": {"type": "object"}}
ARGUMENTS = '{"for": ["lakes", 1]}'
GOOD_BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "go"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "c",
                        "type": "function",
                        "function": {"name": "search", "arguments": ARGUMENTS},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": "page"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
        "n": 1,
        "stop": ["x"],
        "stream": False,
        "max_tokens": 5,
        "seed": 1,
    },
    "responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "go"}]},
            {"type": "function_call", "call_id": "c", "name": "search", "arguments": ARGUMENTS},
            {"type": "function_call_output", "call_id": "c", "output": "page"},
        ],
        "instructions": "be brief",
        "tools": [{"type": "function", **FUNCTION}],
        "max_output_tokens": 5,
        "text": {"format": {"type": "text"}},
    },
    "messages": {
        "messages": [
            {"role": "user", "content": "go"},
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": "c", "name": "search", "input": {"for": ["lakes", 1]}}
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "page"}]},
        ],
        "system": "be brief",
        "tools": [{"name": "search", "input_schema": {"type": "object"}}],
        "max_tokens": 5,
        "stop_sequences": ["x"],
    },
}


def places(value: Any) -> list[tuple[Any, Any]]:
    """Each place in a JSON value: what holds it, and its name or number there."""
    names = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [place for name in names for place in ((value, name), *places(value[name]))]


@pytest.mark.parametrize("path", GOOD_BODIES)
def test_malformed_requests_get_an_error_and_no_traceback(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Bodies with a byte changed, cut off, or values of other types in them; good ones are still answered."""
    draw = random.Random(0)
    good = json.dumps(GOOD_BODIES[path]).encode()
    values: list[Any] = [None, -1, 1e400, "x", [], {}, [[]], True, {"type": "text"}, "\ud800", 2**70]
    values += ['{"a": "\\ud800"}', '{"a": 1e400}', "[" * 2000, {"a": 1e400}, {"a": "\ud800"}, {"a": 2**70}]
    values += [json.loads("[" * 100 + "]" * 100), {"a": json.loads("[" * 100 + "]" * 100)}]

    def malformed() -> bytes:
        kind = draw.randrange(3)
        if kind == 0:
            place = draw.randrange(len(good))
            return good[:place] + bytes([draw.randrange(256)]) + good[place + 1 :]
        if kind == 1:
            return good[: draw.randrange(len(good))]
        body = json.loads(good)
        holder, name = draw.choice(places(body))
        holder[name] = draw.choice(values)
        return json.dumps(body).encode()

    async def use(client: Client) -> None:
        assert (await client.post(good, path=path))[0] == 200
        statuses = {(await client.post(malformed(), path=path))[0] for _ in range(700)}
        assert statuses == {200, 400}
        assert (await client.post(good, path=path))[0] == 200

    served(use)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_wrong_key_is_refused_and_counted_for_no_attempt() -> None:
    async def use(client: Client) -> None:
        status, body, _ = await client.post(GOOD, key="guessed")
        assert (status, body["error"]["code"]) == (403, "attempt_closed")
        assert client.session.calls == 0

    served(use)


def test_a_request_that_a_client_sends_again_gets_the_first_answer() -> None:
    """Its header says so. The same request without it is another call."""

    async def use(client: Client) -> None:
        _, first, _ = await client.post(GOOD)
        _, again, _ = await client.post(GOOD, **{"x-stainless-retry-count": "1"})
        _, other, _ = await client.post(GOOD)
        assert first["id"] == again["id"] != other["id"]
        calls = [each.call for each in client.session.recorded]
        assert [call.call_id for call in calls] == [first["id"], first["id"], other["id"]]
        assert [(call.retry_of, call.start) for call in calls] == [(None, 0), (first["id"], None), (None, 0)]
        assert len(client.session.sequences) == 2

    served(use)


def test_an_agent_that_goes_on_asking_behind_its_limit_does_not_fill_the_memory() -> None:
    async def use(client: Client) -> None:
        await client.post(GOOD)
        for number in range(4):
            body = {"messages": [{"role": "user", "content": f"again {number}"}]}
            status, refused, _ = await client.post(body)
            assert (status, refused["error"]["code"]) == (403, "attempt_limit")
        status, *_ = await client.post(body, **{"x-stainless-retry-count": "1"})
        assert (status, client.session.refused) == (403, 5)
        assert [each.call.problem is None for each in client.session.recorded] == [True, False]
        assert len(client.session._answers) == 1

    served(use, calls=1)


def test_a_client_that_goes_away_and_asks_again_gets_the_answer_that_was_sampled() -> None:
    begun = asyncio.Event()
    asked = 0

    async def slow() -> Generation:
        nonlocal asked
        asked += 1
        begun.set()
        await asyncio.sleep(0.2)
        return said(TOKENIZER, "up<|im_end|>")

    async def use(client: Client) -> None:
        gone = asyncio.create_task(client.post(GOOD))
        await begun.wait()
        gone.cancel()
        status, body, _ = await client.post(GOOD, **{"x-stainless-retry-count": "1"})
        assert (status, body["choices"][0]["message"]["content"]) == (200, "up")
        assert asked == 1

    served(use, slow)


def test_equal_calls_that_are_sent_again_get_different_answers() -> None:
    """As in a vote whose client waits shorter than the policy takes. The last one's client has waited."""
    answers = iter("abcd")
    asked: list[str] = []
    go_on = asyncio.Event()

    async def slow() -> Generation:
        mine = next(answers)
        asked.append(mine)
        await go_on.wait()
        return said(TOKENIZER, f"{mine}<|im_end|>")

    async def use(client: Client) -> None:
        votes = [asyncio.create_task(client.post(GOOD)) for _ in range(4)]
        while len(asked) < len(votes):
            await asyncio.sleep(0.01)
        for vote in votes[:3]:
            vote.cancel()
        (calls,) = client.session._answers.values()
        while sum(is_gone() for (is_gone,) in calls.unheard.values()) < 3:
            await asyncio.sleep(0.01)
        go_on.set()
        again = [client.post(GOOD, **{"x-stainless-retry-count": "1"}) for _ in range(3)]
        got = [
            body["choices"][0]["message"]["content"] for _, body, _ in await asyncio.gather(votes[3], *again)
        ]
        assert sorted(got) == asked == ["a", "b", "c", "d"]
        assert calls.unheard == {}

    served(use, slow)


def test_equal_calls_under_way_all_end_with_the_attempt() -> None:
    """As in a vote: five times the same body at the same time."""
    cancelled = 0

    async def use(client: Client) -> None:
        begun = asyncio.Event()

        async def never() -> Generation:
            nonlocal cancelled
            waiting.append(None)
            if len(waiting) == 5:
                begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled += 1
                raise
            raise AssertionError

        answers.append(never)
        calls = [asyncio.create_task(client.post(GOOD)) for _ in range(5)]
        await begun.wait()
        await client.session.close()
        await asyncio.gather(*calls, return_exceptions=True)
        # As a body that arrives after the attempt's end, whose key was good when it began.
        status, body, _ = await client.post(GOOD)
        assert (status, body["error"]["code"]) == (403, "attempt_closed")
        assert client.session.sequences == []

    waiting: list[None] = []
    answers: list[Callable[[], Awaitable[Generation]]] = []
    served(use, lambda: answers[0]())
    assert cancelled == 5


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("chat/completions", {"logit_bias": None, "service_tier": None, "reasoning_effort": None}),
        ("responses", {"text": {"verbosity": None}, "reasoning": None, "service_tier": None}),
        ("messages", {"service_tier": None, "max_tokens": 5}),
    ],
)
def test_a_null_asks_for_nothing(path: str, more: dict[str, Any]) -> None:
    async def use(client: Client) -> None:
        asked = {"input": "go"} if path == "responses" else {"messages": GOOD["messages"]}
        status, body, _ = await client.post({"model": "m", **asked, **more}, path=path)
        assert status == 200, body

    served(use)


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
def test_what_changes_no_answer_is_taken(path: str) -> None:
    hints = {"service_tier": "auto", "safety_identifier": "u", "prompt_cache_key": "k"}

    async def use(client: Client) -> None:
        asked = {"input": "go"} if path == "responses" else {"messages": GOOD["messages"]}
        more = {**hints, "prompt_cache_retention": "24h"}
        status, body, _ = await client.post({"model": "m", **asked, **more}, path=path)
        assert status == 200, body

    served(use)


def test_what_a_client_has_read_from_an_answer_may_come_back() -> None:
    """The openai package's `chat.completions.parse` adds it to its messages."""

    async def use(client: Client) -> None:
        read = {"role": "assistant", "content": "up", "parsed": {"way": "up"}}
        status, body, _ = await client.post({"messages": [*GOOD["messages"], read, *GOOD["messages"]]})
        assert status == 200, body

    served(use)


def test_a_call_under_way_when_the_attempt_ends_is_not_recorded() -> None:
    sessions = []
    begun = asyncio.Event()

    async def never() -> Generation:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def use(client: Client) -> None:
        sessions.append(client.session)
        call = asyncio.create_task(client.post(GOOD))
        await begun.wait()
        call.cancel()

    served(use, never)
    assert sessions[0].sequences == []


def test_no_choice_of_a_call_under_way_when_the_attempt_ends_is_trained() -> None:
    """Of two choices one is there already."""
    sessions = []
    begun = asyncio.Event()
    asked = 0

    async def one_of_two() -> Generation:
        nonlocal asked
        asked += 1
        if asked == 2:
            begun.set()
            await asyncio.Event().wait()
        return said(TOKENIZER, "up<|im_end|>")

    async def use(client: Client) -> None:
        sessions.append(client.session)
        call = asyncio.create_task(client.post({**GOOD, "n": 2}))
        await begun.wait()
        await client.session.close()
        await asyncio.gather(call, return_exceptions=True)

    served(use, one_of_two)
    assert (sessions[0].sequences, sessions[0].recorded) == ([], [])
