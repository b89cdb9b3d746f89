"""The loop that runs many episodes at a time, each a coroutine, and what answers their questions: an engine
that takes batches, or one that takes single turns."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, Generic, Protocol, TypeVar

from erl_pipeline.engines.interface import AsynchronousEngine, Generation, GenerationEngine
from erl_pipeline.episodes.context import RetrievalRequest, Retrieve, SampleRequest
from storage.errors import Interrupted
from storage.memory.view import MemoryHit
from storage.tables.trajectories import Trajectory

_STOP_POLL_SECONDS = 0.2

Episode = Callable[[int, "Answers"], Coroutine[Any, Any, list[Trajectory]]]
"""Begins an episode. It is given its index, and asks its questions with it."""


class Answers(Protocol):
    """What answers the questions of episodes; `index` says which of them asks."""

    async def sample(self, index: int, asked: SampleRequest) -> Generation:
        """Sample one turn."""

    async def retrieve(self, index: int, asked: RetrievalRequest) -> list[MemoryHit]:
        """Ask memory."""

    def ended(self, index: int) -> None:
        """The episode is over and asks no more."""


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


Question = TypeVar("Question")
Answer = TypeVar("Answer")


class LockstepBatcher:
    """Answers a batch when every episode waits: the questions of the earliest phase, by order of episodes.

    First attempts are answered turn by turn, then what follows them, and so on. What is batched together
    depends on the episodes alone, so that the same episodes get the same bytes. All of them must be under
    way from the beginning, and ask one question at a time.
    """

    def __init__(self, engine: GenerationEngine, retrieve: Retrieve, episodes: int) -> None:
        self._engine = engine
        self._retrieve = retrieve
        self._playing = episodes
        self._waiting: dict[int, tuple[SampleRequest | RetrievalRequest, asyncio.Future[Any]]] = {}

    async def sample(self, index: int, asked: SampleRequest) -> Generation:
        generation: Generation = await self._ask(index, asked)
        return generation

    async def retrieve(self, index: int, asked: RetrievalRequest) -> list[MemoryHit]:
        hits: list[MemoryHit] = await self._ask(index, asked)
        return hits

    def ended(self, index: int) -> None:
        self._playing -= 1
        self._answer_when_all_wait()

    def _ask(self, index: int, asked: SampleRequest | RetrievalRequest) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[index] = (asked, answer)
        self._answer_when_all_wait()
        return answer

    def _answer_when_all_wait(self) -> None:
        if self._waiting and len(self._waiting) == self._playing:
            asyncio.get_running_loop().call_soon(self._answer_earliest)

    def _answer_earliest(self) -> None:
        phase = min(asked.phase for asked, _ in self._waiting.values())
        batch = sorted(index for index, (asked, _) in self._waiting.items() if asked.phase == phase)
        asked, waiting = zip(*(self._waiting.pop(index) for index in batch), strict=True)
        if any(future.cancelled() for future in waiting):
            return  # the episodes were ended meanwhile
        try:
            answers = self._answer(asked)
        except Exception as error:  # It is raised where the first of the batch waits, and ends all others.
            waiting[0].set_exception(error)
            return
        for future, answer in zip(waiting, answers, strict=True):
            future.set_result(answer)

    def _answer(self, asked: Sequence[SampleRequest | RetrievalRequest]) -> Sequence[Any]:
        samples = [request.request for request in asked if isinstance(request, SampleRequest)]
        if samples:
            return self._engine.generate(samples)
        return self._retrieve([request for request in asked if isinstance(request, RetrievalRequest)])


class QueueBatcher:
    """Answers whatever waits when the engine is free, in a thread, so that environments go on meanwhile."""

    def __init__(self, engine: GenerationEngine, retrieve: Retrieve, thread: Executor) -> None:
        self._samples = Collected[SampleRequest, Generation](
            lambda asked: engine.generate([each.request for each in asked]), thread
        )
        # The model that embeds is not the engine's; both may compute at the same time.
        self._retrievals = Collected[RetrievalRequest, "list[MemoryHit]"](retrieve)

    async def sample(self, index: int, asked: SampleRequest) -> Generation:
        return await self._samples.ask(asked)

    async def retrieve(self, index: int, asked: RetrievalRequest) -> list[MemoryHit]:
        return await self._retrievals.ask(asked)

    def ended(self, index: int) -> None:
        """No other episode waits for this."""


class ConcurrentSampler:
    """Sends each turn to an engine that has many under way; memory is asked in another thread.

    Episodes run in the engine's event loop, where the answers arrive: a detour through another thread would
    let the server run half-empty. `on_tokens` is called there too.
    """

    def __init__(
        self, engine: AsynchronousEngine, retrieve: Retrieve, on_tokens: Callable[[int], None]
    ) -> None:
        self._engine = engine
        self._retrievals = Collected[RetrievalRequest, "list[MemoryHit]"](retrieve)
        self._on_tokens = on_tokens

    async def sample(self, index: int, asked: SampleRequest) -> Generation:
        generation = await self._engine.sample(asked.request)
        self._on_tokens(len(generation.token_ids))
        return generation

    async def retrieve(self, index: int, asked: RetrievalRequest) -> list[MemoryHit]:
        return await self._retrievals.ask(asked)

    def ended(self, index: int) -> None:
        """No other episode waits for this."""


class Collected(Generic[Question, Answer]):
    """Has questions answered in another thread, one batch at a time: what is asked meanwhile is the next one.

    `thread` is that thread; by default it is one of the event loop's.
    """

    def __init__(
        self, answer: Callable[[Sequence[Question]], Sequence[Answer]], thread: Executor | None = None
    ) -> None:
        self._answer = answer
        self._thread = thread
        self._asked: list[tuple[Question, asyncio.Future[Answer]]] = []
        self._free = asyncio.Lock()

    async def ask(self, question: Question) -> Answer:
        """The answer; raises what answering the batch raised."""
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[Answer] = loop.create_future()
        self._asked.append((question, mine))
        # Other episodes that can go on now may add a question to this batch.
        await asyncio.sleep(0)
        async with self._free:
            if not mine.done():
                batch, self._asked = self._asked, []
                questions = [asked for asked, _ in batch]
                try:
                    answers = await loop.run_in_executor(self._thread, self._answer, questions)
                except BaseException:
                    for _, waiting in batch:
                        waiting.cancel()
                    raise
                for (_, waiting), answer in zip(batch, answers, strict=True):
                    if not waiting.cancelled():
                        waiting.set_result(answer)
        return mine.result()
