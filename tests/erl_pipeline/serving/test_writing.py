"""When answers are on disk, and what a full disk does."""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage.serving.traffic import ReadTraffic, ServedTurn, read_traffic, segments
from tests.erl_pipeline.serving.served import RUN, Scripted, Served

HI = {"messages": [{"role": "user", "content": "hi"}]}


def on_disk(served: Served) -> int:
    return sum(1 for _ in read_traffic(segments(served.store, RUN), ReadTraffic()))


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may get longer than some bytes, so that a part of a line can still be written."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)


def test_with_each_an_answer_is_on_disk_when_it_arrives(tmp_path: Path) -> None:
    async def use(served: Served) -> None:
        for count in range(1, 4):
            await served.chat("hi")
            assert on_disk(served) == count
        await asyncio.gather(*(served.chat("hi") for _ in range(20)))
        assert on_disk(served) == 23

    Scripted(tmp_path, {"log": {"durability": "each", "flush_ms": 60_000}}).use(use)


def test_with_batch_answers_are_on_disk_a_moment_later(tmp_path: Path) -> None:
    async def use(served: Served) -> None:
        await served.chat("hi")
        assert served.service.log.waiting == 1
        assert len(await served.logged()) == 1

    Scripted(tmp_path, {"log": {"flush_ms": 200}}).use(use)


def test_what_is_sent_again_is_not_taken_before_it_is_on_disk(
    tmp_path: Path,
) -> None:
    async def use(served: Served) -> None:
        await served.chat("first", metadata={"episode_id": "e"})
        again = {"episode_id": "e", "metric": "comment", "value": "x" * 2000, "idempotency_key": "k"}
        with full_disk():
            for _ in range(2):
                status, body, _ = await served.post("/erl/v1/feedback", again)
                assert (status, body["error"]["code"]) == (503, "log_failed")
                assert (await served.post("/erl/v1/episodes/e/close", {}))[0] == 503
        assert (await served.post("/erl/v1/feedback", again))[0] == 200
        assert on_disk(served) == 3

    Scripted(tmp_path, {"log": {"durability": "each", "flush_ms": 60_000}}).use(use)


@pytest.mark.parametrize("durability", ["batch", "each"])
def test_while_the_disk_is_full_no_call_is_answered_and_then_nothing_is_lost_or_doubled(
    tmp_path: Path, durability: str
) -> None:
    async def use(served: Served) -> None:
        await served.chat("first")
        await served.logged()
        with full_disk():
            status, body, answer = await served.post("/v1/chat/completions", HI)
            while not served.service.log.failure:
                await asyncio.sleep(0.005)
            assert status == (503 if durability == "each" else 200)
            status, body, answer = await served.post("/v1/chat/completions", HI)
            assert (status, body["error"]["code"]) == (503, "log_failed")
            assert answer.headers["Retry-After"] == "5"
            assert (await served.health())["status"] == "log_failed"
        while served.service.log.failure:
            await asyncio.sleep(0.005)
        await served.chat("last")
        records = await served.logged()
        asked = [record.messages[0]["content"] for record in records if isinstance(record, ServedTurn)]
        assert asked == ["first", "hi", "last"]
        assert "no call is answered until it can" in served.told[0]
        assert served.told[1] == "The log can be written again."

    Scripted(tmp_path, {"log": {"durability": durability, "flush_ms": 20}}).use(use)
