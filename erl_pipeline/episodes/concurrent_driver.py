"""Runs episodes each at its own pace on an engine that answers single requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from erl_pipeline.engines.interface import Generation, GenerationRequest, Interrupted
from erl_pipeline.episodes.batched_driver import Retrieve
from erl_pipeline.episodes.requests import Answer, EpisodeSteps, ReflectionsWanted
from storage.memory.view import MemoryHit
from storage.tables.trajectories import Trajectory

_STOP_POLL_SECONDS = 0.2
Result = TypeVar("Result")


class AsynchronousEngine(Protocol):
    """An engine that samples many turns at a time, in an event loop of its own."""

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` in the engine's event loop to its end; may raise `Interrupted`, which cancels it."""
        ...

    async def sample(self, request: GenerationRequest) -> Generation:
        """Sample one turn; only within `run`."""
        ...


def run_concurrently(
    episodes: Sequence[Callable[[], EpisodeSteps]],
    engine: AsynchronousEngine,
    retrieve: Retrieve,
    on_episode: Callable[[list[Trajectory]], None],
    on_tokens: Callable[[int], None],
    max_in_flight: int,
    stop: threading.Event,
) -> list[list[Trajectory]]:
    """Run all episodes to their end; returns each one's trajectories, in order.

    At most `max_in_flight` episodes are under way; each is made when its turn comes. There is no barrier:
    an episode's next turn starts when its last one is answered. Environments step in the engine's event
    loop, where the answers arrive, since the hop to another thread and back would let the server run
    half-empty; `on_episode` and `on_tokens` are called there too. Which episodes end first depends on the
    engine's speed, and `on_episode` sees them in that order. Raises `Interrupted` once `stop` is set, and
    what the engine raises.
    """
    play = _Play(episodes, engine, _Retrievals(retrieve), on_episode, on_tokens)
    return engine.run(play.all(max_in_flight, stop))


class _Play:
    """Episodes that are under way and the results of those that are over."""

    def __init__(
        self,
        episodes: Sequence[Callable[[], EpisodeSteps]],
        engine: AsynchronousEngine,
        retrievals: _Retrievals,
        on_episode: Callable[[list[Trajectory]], None],
        on_tokens: Callable[[int], None],
    ) -> None:
        self._episodes = episodes
        self._engine = engine
        self._retrievals = retrievals
        self._on_episode = on_episode
        self._on_tokens = on_tokens
        self._results: dict[int, list[Trajectory]] = {}

    async def all(self, max_in_flight: int, stop: threading.Event) -> list[list[Trajectory]]:
        upcoming = iter(range(len(self._episodes)))
        try:
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(_raise_when_set(stop))
                async with asyncio.TaskGroup() as playing:
                    for _ in range(min(max_in_flight, len(self._episodes))):
                        playing.create_task(self._work(upcoming))
                watch.cancel()
        except ExceptionGroup as errors:
            # One tells what happened; the others follow from it.
            raise _first(errors) from None
        return [self._results[index] for index in range(len(self._episodes))]

    async def _work(self, upcoming: Iterator[int]) -> None:
        """Play one episode after the other."""
        for index in upcoming:
            rows = await self._episode(self._episodes[index]())
            self._results[index] = rows
            self._on_episode(rows)

    async def _episode(self, steps: EpisodeSteps) -> list[Trajectory]:
        answer: Answer | None = None
        while True:
            try:
                # The first `send` of a generator must be None.
                want = steps.send(answer)  # type: ignore[arg-type]
            except StopIteration as end:
                return end.value
            if isinstance(want, ReflectionsWanted):
                answer = await self._retrievals.ask(want)
            else:
                answer = await self._engine.sample(want.request)
                self._on_tokens(len(answer.token_ids))


class _Retrievals:
    """Asks memory on another thread, one question at a time: what is wanted meanwhile makes up the next."""

    def __init__(self, retrieve: Retrieve) -> None:
        self._retrieve = retrieve
        self._wanted: list[tuple[ReflectionsWanted, asyncio.Future[list[MemoryHit]]]] = []
        self._free = asyncio.Lock()

    async def ask(self, want: ReflectionsWanted) -> list[MemoryHit]:
        answer: asyncio.Future[list[MemoryHit]] = asyncio.get_running_loop().create_future()
        self._wanted.append((want, answer))
        # Those that can go on now may want something too.
        await asyncio.sleep(0)
        async with self._free:
            if not answer.done():
                asked, self._wanted = self._wanted, []
                found = await asyncio.to_thread(self._retrieve, [wanted for wanted, _ in asked])
                for (_, waiting), hits in zip(asked, found, strict=True):
                    waiting.set_result(hits)
        return answer.result()


async def _raise_when_set(stop: threading.Event) -> None:
    while not stop.is_set():
        await asyncio.sleep(_STOP_POLL_SECONDS)
    raise Interrupted


def _first(errors: ExceptionGroup[Exception]) -> Exception:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error
