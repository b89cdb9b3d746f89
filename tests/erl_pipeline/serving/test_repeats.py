"""Calls that a client's library sends again: what they get, and that nothing is sampled or logged twice."""

from __future__ import annotations

import asyncio
import gc
import re
from functools import partial
from pathlib import Path

import pytest

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.episodes.gateway.sequences import SampledSequence
from erl_pipeline.serving import server
from erl_pipeline.serving.keys import Client
from erl_pipeline.serving.requests import ServedRequest
from tests.erl_pipeline.serving.served import HeldAnswers, Scripted, Served, names_itself, turns

HI = [{"role": "user", "content": "hi"}]


async def attempt(served: Served, text: str, retries: int) -> tuple[int, str]:
    """The status of a call that was sent `retries` times before, and the id of the call that was answered."""
    headers = {"Authorization": "Bearer key-a", "x-stainless-retry-count": str(retries)}
    body = {"messages": [{"role": "user", "content": text}]}
    async with served.http.post(f"{served.url}/v1/chat/completions", json=body, headers=headers) as told:
        return told.status, told.headers.get("x-erl-call-id", "")


@pytest.mark.parametrize("streams", [False, True])
def test_a_call_that_a_library_sends_again_gets_the_answer_of_the_first(
    tmp_path: Path, streams: bool
) -> None:
    """While it is under way, and after; but not after an error, nor another tenant."""
    held, failing = HeldAnswers(), True

    async def says(checkpoint: str, request: GenerationRequest) -> Generation:
        if failing:
            raise RuntimeError("out of memory")
        return await held(checkpoint, request)

    async def use(served: Served) -> None:
        nonlocal failing

        async def sent(retries: str, key: str = "key-a") -> tuple[int, str, str]:
            headers = {"Authorization": f"Bearer {key}", "x-stainless-retry-count": retries}
            body = {"messages": HI, "stream": streams}
            async with served.http.post(
                f"{served.url}/v1/chat/completions", json=body, headers=headers
            ) as told:
                # When it was written is no part of the answer.
                text = re.sub('"created": [0-9]+', "", await told.text())
                return told.status, told.headers.get("x-erl-call-id", ""), text

        assert (await sent("0"))[0] == 503
        failing = False
        first = asyncio.create_task(sent("1"))
        await held.begun.wait()
        joined = asyncio.create_task(sent("2"))
        await asyncio.sleep(0.05)
        held.go_on.set()
        assert (await first)[0] == 200
        assert await joined == await first == await sent("3")
        others = [await sent("0"), await sent("1", "key-b")]
        logged = [turn.call_id for turn in await turns(served)]
        assert logged == [told[1] for told in (await first, *others)]
        assert len(set(logged)) == 3

    Scripted(tmp_path, says=says).use(use)


def test_equal_calls_of_two_users_that_come_again_get_an_answer_each(tmp_path: Path) -> None:
    """Their clients have waited no longer, as where the engine starts again."""
    held = HeldAnswers()
    asked = 0

    async def says(checkpoint: str, request: GenerationRequest) -> Generation:
        nonlocal asked
        asked += 1
        return await held(checkpoint, request)

    async def use(served: Served) -> None:
        waiting = [asyncio.create_task(attempt(served, "hi", 0)) for _ in range(2)]
        while asked < 2:
            await asyncio.sleep(0.01)
        for each in waiting:
            each.cancel()
        await asyncio.sleep(0.2)  # Nothing tells when the server has seen that they are gone.
        held.go_on.set()
        told = await asyncio.gather(*(attempt(served, "hi", 1) for _ in range(2)))
        assert [status for status, _ in told] == [200, 200]
        logged = [turn.call_id for turn in await turns(served)]
        assert sorted(call_id for _, call_id in told) == sorted(logged)
        assert len(set(logged)) == 2
        # Both have heard their answers, and nobody can tell whose call comes again.
        assert (await attempt(served, "hi", 2))[1] not in logged

    Scripted(tmp_path, says=says).use(use)


def test_what_is_kept_for_clients_that_ask_again_is_no_request_and_no_tokens(tmp_path: Path) -> None:
    """Of an answer only what the client is told; nothing of a call that failed, or was refused."""
    failing = False

    async def says(checkpoint: str, request: GenerationRequest) -> Generation:
        if failing:
            raise RuntimeError("out of memory")
        return await names_itself(checkpoint, request)

    def held(text: str) -> list[object]:
        gc.collect()
        found = [each for each in gc.get_objects() if type(each) in (ServedRequest, SampledSequence)]
        return [each for each in found if text in repr(each)]

    async def use(served: Served) -> None:
        nonlocal failing
        headers = {"Authorization": "Bearer key-a", "x-stainless-retry-count": "0"}
        url = f"{served.url}/v1/chat/completions"
        for text, wanted in (("kept answer", 200), ("x" * 24_001, 400), ("kept failure", 503)):
            failing = wanted == 503
            body = {"messages": [{"role": "user", "content": text}], "store": False}
            async with served.http.post(url, json=body, headers=headers) as told:
                assert told.status == wanted
            assert held(text) == []

    Scripted(tmp_path, says=says).use(use)


@pytest.mark.parametrize("limit", ["in_flight", "requests_per_minute"])
def test_a_call_that_was_refused_never_gets_the_answer_of_another_one_with_the_same_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """As where a client samples one prompt many times."""
    held, seconds_to_wait = HeldAnswers(), 0.0
    if limit == "requests_per_minute":
        monkeypatch.setattr(Client, "seconds_to_wait", lambda _: seconds_to_wait)

    async def use(served: Served) -> None:
        nonlocal seconds_to_wait

        sent = partial(attempt, served, "hi")
        first = [asyncio.create_task(sent(0)) for _ in range(2)]
        await held.begun.wait()
        while served.service.under_way < 2:
            await asyncio.sleep(0.01)
        seconds_to_wait = 1.0
        assert [await sent(0) for _ in range(2)] == [(429, "")] * 2
        held.go_on.set()
        answered = [await each for each in first]
        seconds_to_wait = 0.0
        answered += [await sent(1) for _ in range(2)]
        assert [status for status, _ in answered] == [200] * 4
        assert len({call_id for _, call_id in answered}) == 4
        assert await sent(2) not in answered

    settings = {"limits": {"in_flight": 2}} if limit == "in_flight" else {}
    Scripted(tmp_path, settings, says=held).use(use)


def test_a_call_that_comes_again_above_the_limit_of_its_key_gets_the_answer_that_was_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first one that takes long, and one that was refused twice before it was answered."""
    held, seconds_to_wait = HeldAnswers(), 0.0
    monkeypatch.setattr(Client, "seconds_to_wait", lambda _: seconds_to_wait)

    async def use(served: Served) -> None:
        nonlocal seconds_to_wait

        sent = partial(attempt, served)
        slow = asyncio.create_task(sent("slow", 0))
        await held.begun.wait()
        seconds_to_wait = 1.0
        again = asyncio.create_task(sent("slow", 1))
        assert [await sent("refused", retries) for retries in (0, 1)] == [(429, "")] * 2
        held.go_on.set()
        answered = await slow
        assert (answered[0], await again) == (200, answered)
        seconds_to_wait = 0.0
        assert await sent("slow", 2) == answered
        later = await sent("refused", 2)
        assert (later[0], await sent("refused", 3)) == (200, later)
        assert [turn.call_id for turn in await turns(served)] == [answered[1], later[1]]

    Scripted(tmp_path, says=held).use(use)


def test_a_call_that_fails_while_it_comes_again_is_sampled_once_more_only(tmp_path: Path) -> None:
    """Its client waits no more for the first try, but the server does."""
    held, failing = HeldAnswers(), True

    async def says(checkpoint: str, request: GenerationRequest) -> Generation:
        answer = await held(checkpoint, request)
        if failing:
            raise RuntimeError("out of memory")
        return answer

    async def use(served: Served) -> None:
        nonlocal failing

        sent = partial(attempt, served, "hi")
        tries = [asyncio.create_task(sent(0))]
        await held.begun.wait()
        tries.append(asyncio.create_task(sent(1)))
        await asyncio.sleep(0.05)
        held.go_on.set()
        assert [(await each)[0] for each in tries] == [503, 503]
        failing = False
        answered = await sent(2)
        assert (answered[0], await sent(3)) == (200, answered)
        assert len(await turns(served)) == 1

    Scripted(tmp_path, says=says).use(use)


@pytest.mark.parametrize("limit", ["_MOST_REPEATS", "_REPEAT_SECONDS"])
def test_a_call_under_way_is_known_however_many_others_come_and_however_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    held = HeldAnswers()
    monkeypatch.setattr(server, limit, {"_MOST_REPEATS": 2, "_REPEAT_SECONDS": 0.0}[limit])

    async def use(served: Served) -> None:
        sent = partial(attempt, served)
        slow = asyncio.create_task(sent("slow", 0))
        await held.begun.wait()
        assert [await sent(f"other {number}", 0) for number in range(3)] == [(429, "")] * 3
        again = asyncio.create_task(sent("slow", 1))
        # Two connections: only now has the second call come.
        await sent("another", 0)
        held.go_on.set()
        assert await slow == await again
        assert len(await turns(served)) == 1
        # Once it is answered, it is forgotten as others are.
        for number in range(2):
            await sent(f"later {number}", 0)
        assert await sent("slow", 1) != await slow

    Scripted(tmp_path, {"limits": {"in_flight": 1}}, says=held).use(use)
