"""The loop that runs many episodes at a time, each a coroutine, and what answers their questions: an engine
that takes batches, or one that takes single turns."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from jinja2 import TemplateError

from erl_pipeline.engines.interface import AsynchronousEngine, Generation, GenerationEngine
from erl_pipeline.episodes.context import RetrievalRequest, Retrieve, SampleRequest
from storage.errors import InputError, Interrupted
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


class EpisodeSet:
    """Episodes whose trajectories are asked for together, such as those of a shard; `ended` has those of each
    episode that is over, by its index."""

    def __init__(self, episodes: Sequence[Episode]) -> None:
        self.episodes = episodes
        self.ended: dict[int, list[Trajectory]] = {}
        self.error: BaseException | None = None
        self.over = asyncio.Event()
        """Set when all have ended, or when one has failed."""
        self.on_episode: Callable[[list[Trajectory]], None] = lambda rows: None
        if not episodes:
            self.over.set()


def refused_by_template(error: TemplateError) -> InputError:
    """What to say where the chat template does not take the messages of an episode."""
    return InputError(
        f"the policy's chat template refuses the messages of an episode: {error}. Use a policy whose "
        "template takes the roles system, user and assistant, or change its chat_template"
    )


class EpisodeQueue:
    """Plays episodes of one set after the other, at most `places` at a time: those of a later set begin when
    all of the earlier ones have begun. Lives in one event loop, and episodes go on while nobody waits."""

    def __init__(self, answers: Answers, places: int) -> None:
        self._answers = answers
        self._free = places
        self._waiting: deque[tuple[EpisodeSet, int]] = deque()
        self._playing: set[asyncio.Task[None]] = set()

    def add(self, added: EpisodeSet) -> None:
        """Let episodes begin when their turn comes."""
        self._waiting.extend((added, index) for index in range(len(added.episodes)))
        self._begin()

    async def results(
        self, of: EpisodeSet, on_episode: Callable[[list[Trajectory]], None], stop: threading.Event
    ) -> list[list[Trajectory]]:
        """Wait for all episodes of a set; returns each one's trajectories, in order.

        `on_episode` is called with each one that has ended, in the order in which they end. Raises
        `Interrupted` once `stop` is set, and what an answer raises; all episodes are cancelled then, also
        those of other sets.
        """
        try:
            for rows in of.ended.values():
                on_episode(rows)
            of.on_episode = on_episode
            while not of.over.is_set():
                if stop.is_set():
                    raise Interrupted
                with suppress(TimeoutError):
                    await asyncio.wait_for(of.over.wait(), _STOP_POLL_SECONDS)
            if isinstance(of.error, TemplateError):
                raise refused_by_template(of.error) from of.error
            if of.error is not None:
                raise of.error
        except BaseException:
            await self.cancel()
            raise
        return [of.ended[index] for index in range(len(of.episodes))]

    async def cancel(self) -> None:
        """End all episodes, and wait until their environments are closed."""
        self._waiting.clear()
        for task in self._playing:
            task.cancel()
        await asyncio.gather(*self._playing, return_exceptions=True)

    def _begin(self) -> None:
        for _ in range(min(self._free, len(self._waiting))):
            self._free -= 1
            task = asyncio.get_running_loop().create_task(self._play_in_turn())
            self._playing.add(task)
            task.add_done_callback(self._playing.discard)

    async def _play_in_turn(self) -> None:
        """Play one episode after the other at one place, until none waits."""
        try:
            while self._waiting:
                of, index = self._waiting.popleft()
                try:
                    rows = of.ended[index] = await of.episodes[index](index, self._answers)
                    self._answers.ended(index)
                    of.on_episode(rows)
                except Exception as error:  # Whoever waits for the set raises it, and ends all others.
                    of.error = of.error or error
                    of.over.set()
                    self._waiting.clear()
                if len(of.ended) == len(of.episodes):
                    of.over.set()
        finally:
            self._free += 1


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


class _MemoryInThread:
    """Asks memory in another thread. The model that embeds is not the engine's; both may compute at the same
    time."""

    def __init__(self, retrieve: Retrieve) -> None:
        self._retrievals = Collected[RetrievalRequest, "list[MemoryHit]"](retrieve)

    async def retrieve(self, index: int, asked: RetrievalRequest) -> list[MemoryHit]:
        return await self._retrievals.ask(asked)

    def ended(self, index: int) -> None:
        """No other episode waits for this."""


class QueueBatcher(_MemoryInThread):
    """Answers whatever waits when the engine is free, in a thread, so that environments go on meanwhile."""

    def __init__(self, engine: GenerationEngine, retrieve: Retrieve, thread: Executor) -> None:
        super().__init__(retrieve)
        self._samples = Collected[SampleRequest, Generation](
            lambda asked: engine.generate([each.request for each in asked]), thread
        )

    async def sample(self, index: int, asked: SampleRequest) -> Generation:
        return await self._samples.ask(asked)


class ConcurrentSampler(_MemoryInThread):
    """Sends each turn to an engine that has many under way.

    Episodes run in the engine's event loop, where the answers arrive: a detour through another thread would
    let the server run half-empty. `on_tokens` is called there too.
    """

    def __init__(
        self, engine: AsynchronousEngine, retrieve: Retrieve, on_tokens: Callable[[int], None]
    ) -> None:
        super().__init__(retrieve)
        self._engine = engine
        self.on_tokens = on_tokens

    async def sample(self, index: int, asked: SampleRequest) -> Generation:
        generation = await self._engine.sample(asked.request)
        self.on_tokens(len(generation.token_ids))
        return generation


class Collected(Generic[Question, Answer]):
    """Has questions answered in another thread, one batch at a time: what is asked meanwhile is the next one.

    Who asks and is cancelled ends alone: the others of the batch get their answers.

    `thread` is that thread; by default it is one of the event loop's.
    """

    def __init__(
        self, answer: Callable[[Sequence[Question]], Sequence[Answer]], thread: Executor | None = None
    ) -> None:
        self._answer = answer
        self._thread = thread
        self._asked: list[tuple[Question, asyncio.Future[Answer]]] = []
        self._answering: asyncio.Task[None] | None = None

    async def ask(self, question: Question) -> Answer:
        """The answer; raises what answering the batch raised."""
        mine: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asked.append((question, mine))
        if self._answering is None or self._answering.done():
            self._answering = asyncio.create_task(self._answer_batches())
        return await mine

    async def _answer_batches(self) -> None:
        """Answer until nothing is asked. It is a task of its own, which ends with nobody's question."""
        while self._asked:
            # Other episodes that can go on now may add a question to this batch.
            await asyncio.sleep(0)
            batch = [each for each in self._asked if not each[1].done()]
            self._asked = []
            if batch:
                await self._answer_batch(*zip(*batch, strict=True))

    async def _answer_batch(
        self, questions: Sequence[Question], waiting: Sequence[asyncio.Future[Answer]]
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._thread, self._answer, questions)
        except Exception as error:  # Whoever waits for this batch raises it.
            for each in waiting:
                if not each.done():
                    each.set_exception(error)
            return
        for each, answer in zip(waiting, answers, strict=True):
            if not each.done():
                each.set_result(answer)
