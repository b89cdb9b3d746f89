"""Which episode a call belongs to."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.episodes.dialogue import ChatTokenizer
from erl_pipeline.serving.episodes import OpenEpisodes
from erl_pipeline.serving.known import KnownTraffic, next_id
from storage.serving.traffic import EpisodeEnd
from tests.erl_pipeline.episodes.test_dialogue import said
from tests.erl_pipeline.serving.served import TOKENIZER, Scripted, Served, turns


def with_a_clock(served: Served) -> tuple[KnownTraffic, list[float]]:
    """Have episodes be over after a minute, by a clock that the test sets: the list has its seconds."""
    traffic, seconds, began = KnownTraffic(), [0.0], time.time()
    served.service._traffic = traffic
    served.service.episodes = OpenEpisodes(
        traffic, 60.0, clock=lambda: seconds[0], now=lambda: began + seconds[0]
    )
    return traffic, seconds


def test_conversations_without_ids_are_episodes_of_one_user_behind_one_key(tmp_path: Path) -> None:
    """Equal histories of others are other episodes; of two equal ones each goes on once."""

    async def says(checkpoint: str, request: GenerationRequest) -> Generation:
        return said(TOKENIZER, "yes<|im_end|>")

    async def episode(served: Served, *texts: str, key: str = "key-a", user: str = "") -> str:
        named = {"metadata": {"user": user}} if user else {}
        return (await served.chat(*texts, key=key, **named))[1]["x-erl-episode-id"]

    async def use(served: Served) -> None:
        first, second = await episode(served, "hi"), await episode(served, "hi")
        of_anna, of_b = await episode(served, "hi", user="anna"), await episode(served, "hi", key="key-b")
        assert len({first, second, of_anna, of_b}) == 4
        assert await episode(served, "hi", "yes", "more", user="anna") == of_anna
        assert await episode(served, "hi", "yes", "more", key="key-b") == of_b
        assert await episode(served, "hi", "yes", "more") == first
        assert await episode(served, "hi", "yes", "more") == second
        assert await episode(served, "hi", "no", "more") not in (first, second)
        logged = await turns(served)
        assert [turn.after is None for turn in logged] == [True] * 4 + [False] * 4 + [True]

    Scripted(tmp_path, says=says).use(use)


def test_an_episode_has_one_user_and_is_of_one_tenant(tmp_path: Path) -> None:
    async def use(served: Served) -> None:
        await served.chat("hi", metadata={"episode_id": "e", "user": "anna"})
        await served.chat("hi", key="key-b", metadata={"episode_id": "e", "user": "bert"})
        body = {
            "messages": [{"role": "user", "content": "hi"}],
            "metadata": {"episode_id": "e", "user": "bert"},
        }
        status, refused, _ = await served.post("/v1/chat/completions", body)
        assert (status, refused["error"]["param"]) == (400, "metadata.user")
        assert [turn.tenant for turn in await turns(served)] == ["a", "b"]

    Scripted(tmp_path).use(use)


@pytest.mark.parametrize(("idle_seconds", "most_tokens"), [(1e-9, 10**9), (1e9, 20)])
def test_what_is_idle_or_too_much_is_forgotten_but_not_its_name(
    tmp_path: Path, idle_seconds: float, most_tokens: int
) -> None:
    async def use(served: Served) -> None:
        traffic = KnownTraffic()
        served.service.episodes = OpenEpisodes(traffic, idle_seconds, most_tokens)
        answer, first = await served.chat("hi")
        _, second = await served.chat("hi", answer, "more")
        assert first["x-erl-episode-id"] != second["x-erl-episode-id"]
        _, named = await served.chat("hi", answer, "more", metadata={"episode_id": first["x-erl-episode-id"]})
        assert named["x-erl-episode-id"] == first["x-erl-episode-id"]
        assert len(served.service.episodes) == 1
        assert all(turn.after is None for turn in await turns(served))

    Scripted(tmp_path).use(use)


def test_a_name_that_goes_on_after_its_episode_is_over_is_another_episode(tmp_path: Path) -> None:
    """As the id of a thread whose user comes back the next day: the first part may be sealed already."""

    async def use(served: Served) -> None:
        _, seconds = with_a_clock(served)
        thread = {"episode_id": "thread"}
        answer, first = await served.chat("hi", metadata=thread)
        seconds[0] = 50.0
        _, still = await served.chat("hi", answer, "more", metadata=thread)
        seconds[0] = 90_000.0
        _, later = await served.chat("hi", answer, "and now?", metadata=thread)
        _, same = await served.chat("again", metadata=thread)
        found = [each["x-erl-episode-id"] for each in (first, still, later, same)]
        assert found == ["thread", "thread", "thread~part-2", "thread~part-2"]

        # A later server knows it from the log, and what is said of the thread is said of its newest part.
        logged = await turns(served)
        known = KnownTraffic(logged)
        newest = known.episode(logged[0].tenant, "thread")
        assert newest is not None
        assert newest.episode_id == "thread~part-2"
        assert next_id(newest) == "thread~part-3"

    Scripted(tmp_path).use(use)


def test_the_parts_of_a_thread_are_of_its_user_and_only_the_newest_goes_on(tmp_path: Path) -> None:
    async def use(served: Served) -> None:
        traffic, seconds = with_a_clock(served)
        alice = {"episode_id": "thread", "user": "alice"}
        ids = []
        for seconds[0] in (0.0, 90_000.0, 180_000.0):
            # The first call of a day names nobody.
            for given in ({"episode_id": "thread"} if seconds[0] else alice, alice):
                _, headers = await served.chat("hi", metadata=given)
                ids.append(headers["x-erl-episode-id"])
        assert ids == ["thread", "thread", *["thread~part-2"] * 2, *["thread~part-3"] * 2]
        assert len({turn.user for turn in await turns(served)}) == 1
        # The id of an earlier part leads to the newest one, which goes on after an earlier part was closed.
        _, headers = await served.chat("hi", metadata={"episode_id": "thread~part-2"})
        assert headers["x-erl-episode-id"] == "thread~part-3"
        traffic.add(EpisodeEnd(episode_id="thread~part-2", tenant="acme", received=datetime.now(UTC)))
        _, headers = await served.chat("hi", metadata=alice)
        assert headers["x-erl-episode-id"] == "thread~part-3"
        status, body, _ = await served.post(
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "hi"}], "metadata": {"episode_id": "other~part-7"}},
        )
        assert (status, body["error"]["param"]) == (400, "metadata.episode_id")

    Scripted(tmp_path).use(use)


def test_the_id_of_a_later_part_of_a_long_name_is_an_id_too(tmp_path: Path) -> None:
    async def use(served: Served) -> None:
        _, seconds = with_a_clock(served)
        thread = {"episode_id": "t" * 240}
        await served.chat("hi", metadata=thread)
        seconds[0] = 90_000.0
        part = (await served.chat("hi", metadata=thread))[1]["x-erl-episode-id"]
        assert part == "t" * 240 + "~part-2"
        assert (await served.chat("more", metadata={"episode_id": part}))[1]["x-erl-episode-id"] == part
        body = {"messages": [{"role": "user", "content": "hi"}], "metadata": {"episode_id": "t" * 241}}
        status, refused, _ = await served.post("/v1/chat/completions", body)
        assert (status, refused["error"]["param"]) == (400, "metadata.episode_id")

    Scripted(tmp_path).use(use)


def test_an_idle_episode_ends_also_while_an_older_one_waits_for_its_answer(tmp_path: Path) -> None:
    slow, is_asked = asyncio.Event(), asyncio.Event()

    async def says(checkpoint: str, request: GenerationRequest) -> Generation:
        if request.prompt_token_ids == slow_prompt:
            is_asked.set()
            await slow.wait()
        return said(TOKENIZER, "yes<|im_end|>")

    slow_prompt = ChatTokenizer(TOKENIZER).prompt([{"role": "user", "content": "slow"}])

    async def use(served: Served) -> None:
        _, seconds = with_a_clock(served)
        waiting = asyncio.create_task(served.chat("slow"))
        await is_asked.wait()
        await served.chat("hi")
        seconds[0] = 90.0
        await served.chat("hello")
        assert len(served.service.episodes) == 2  # the one that waits, and the new one
        slow.set()
        await waiting

    Scripted(tmp_path, says=says).use(use)


def test_a_call_that_is_answered_after_its_episode_was_closed_is_logged_and_forgotten(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def says(checkpoint: str, request: GenerationRequest) -> Generation:
        if len(request.prompt_token_ids) > 30:
            begun.set()
            await go_on.wait()
        return said(TOKENIZER, "yes<|im_end|>")

    async def use(served: Served) -> None:
        answer, told = await served.chat("hi")
        late = asyncio.create_task(served.chat("hi", answer, "more"))
        await begun.wait()
        await served.post(f"/erl/v1/episodes/{told['x-erl-episode-id']}/close", {})
        go_on.set()
        assert (await late)[1]["x-erl-episode-id"] == told["x-erl-episode-id"]
        _, other = await served.chat("hi", answer, "more", "yes", "on")
        assert other["x-erl-episode-id"] != told["x-erl-episode-id"]
        assert len(await turns(served)) == 3

    Scripted(tmp_path, says=says).use(use)
