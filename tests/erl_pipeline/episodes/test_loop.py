"""Questions that are answered in batches, and who is told when one of them ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from erl_pipeline.episodes.loop import Collected
from storage.errors import EngineError


class Doubles:
    """Doubles numbers, a batch at a time, but not before `go_on` is set."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.batches: list[list[int]] = []
        self.error: Exception | None = None

    def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.batches.append(list(numbers))
        self.begun.set()
        assert self.go_on.wait(60.0)
        if self.error is not None:
            raise self.error
        return [2 * number for number in numbers]


async def begun(doubles: Doubles, asked: Collected[int, int], *numbers: int) -> list[asyncio.Task[int]]:
    tasks = [asyncio.create_task(asked.ask(number)) for number in numbers]
    await asyncio.to_thread(doubles.begun.wait)
    return tasks


def test_what_is_asked_meanwhile_is_the_next_batch() -> None:
    async def use() -> None:
        doubles = Doubles()
        asked = Collected(doubles)
        first = await begun(doubles, asked, 1, 2)
        later = await begun(doubles, asked, 3, 4)
        doubles.go_on.set()
        assert await asyncio.gather(*first, *later) == [2, 4, 6, 8]
        assert await asked.ask(5) == 10
        assert doubles.batches == [[1, 2], [3, 4], [5]]

    asyncio.run(use())


@pytest.mark.parametrize("cancelled", [0, 1])
def test_who_is_cancelled_ends_alone(cancelled: int) -> None:
    """As the attempt of an agent that is killed while its call is sampled together with others."""

    async def use() -> None:
        doubles = Doubles()
        asked = Collected(doubles)
        tasks = await begun(doubles, asked, 1, 2)
        waiting = await begun(doubles, asked, 3, 4)
        for each in (tasks[cancelled], waiting[cancelled]):
            each.cancel()
        await asyncio.sleep(0)
        doubles.go_on.set()
        left = 1 - cancelled
        assert await tasks[left] == 2 * (1 + left)
        assert await waiting[left] == 2 * (3 + left)
        assert doubles.batches == [[1, 2], [3 + left]]  # nobody waits for the other answer
        for each in (tasks[cancelled], waiting[cancelled]):
            with pytest.raises(asyncio.CancelledError):
                await each

    asyncio.run(use())


def test_all_of_a_batch_that_fails_are_told() -> None:
    async def use() -> None:
        doubles = Doubles()
        asked = Collected(doubles)
        tasks = await begun(doubles, asked, 1, 2)
        doubles.error = EngineError("out of memory")
        doubles.go_on.set()
        told = await asyncio.gather(*tasks, return_exceptions=True)
        assert [str(each) for each in told] == ["out of memory"] * 2
        doubles.error = None
        assert await asked.ask(3) == 6

    asyncio.run(use())
