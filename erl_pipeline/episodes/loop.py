"""The loop that runs many episodes at a time, each a coroutine, whatever answers their questions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from erl_pipeline.engines.interface import Generation
from erl_pipeline.episodes.requests import RetrievalRequest, SampleRequest
from storage.errors import Interrupted
from storage.tables.trajectories import Trajectory

if TYPE_CHECKING:
    from storage.memory.view import MemoryHit

_STOP_POLL_SECONDS = 0.2

Episode = Callable[[int, "Answers"], Coroutine[Any, Any, list[Trajectory]]]
"""Begins an episode. It is given its index, and asks its questions with it."""


class Answers(Protocol):
    """What answers the questions of episodes; `index` says which of them asks."""

    async def sample(self, index: int, asked: SampleRequest) -> Generation:
        """Sample one turn."""
        ...

    async def retrieve(self, index: int, asked: RetrievalRequest) -> list[MemoryHit]:
        """Ask memory."""
        ...

    def ended(self, index: int) -> None:
        """The episode is over and asks no more."""
        ...


async def run_episodes(
    episodes: Sequence[Episode],
    answers: Answers,
    max_in_flight: int,
    on_episode: Callable[[list[Trajectory]], None],
    stop: threading.Event,
) -> list[list[Trajectory]]:
    """Run all episodes to their end; returns each one's trajectories, in order.

    At most `max_in_flight` episodes are under way; each begins when its turn comes. `on_episode` is called
    with each one that ends, in the order in which they end. Raises `Interrupted` once `stop` is set, and what
    an answer raises; the other episodes are cancelled then.
    """
    results: dict[int, list[Trajectory]] = {}

    async def play_one_after_another(upcoming: Iterator[int]) -> None:
        for index in upcoming:
            results[index] = await episodes[index](index, answers)
            answers.ended(index)
            on_episode(results[index])

    upcoming = iter(range(len(episodes)))
    try:
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(_raise_when_set(stop))
            async with asyncio.TaskGroup() as playing:
                for _ in range(min(max_in_flight, len(episodes))):
                    playing.create_task(play_one_after_another(upcoming))
            watch.cancel()
    except ExceptionGroup as errors:
        # The first says what happened; the others follow from it.
        raise _first(errors) from None
    return [results[index] for index in range(len(episodes))]


async def _raise_when_set(stop: threading.Event) -> None:
    while not stop.is_set():
        await asyncio.sleep(_STOP_POLL_SECONDS)
    raise Interrupted


def _first(errors: ExceptionGroup[Exception]) -> Exception:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error
