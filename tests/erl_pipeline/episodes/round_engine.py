"""An engine with places whose time is counted: in each round every turn under way gets one more token."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from erl_pipeline.engines.interface import Generation, GenerationRequest

Result = TypeVar("Result")
_STEPS = 50
"""Turns of the event loop after which nothing but a round can go on."""


class RoundEngine:
    """Samples in an event loop on a thread of its own; rounds pass while somebody waits within `run`.

    Args:
        answer: gives a turn, which takes as many rounds as it has tokens.
    """

    def __init__(self, answer: Callable[[GenerationRequest], Generation]) -> None:
        self.rounds = 0
        self.most_in_flight = 0
        self.asked: list[str] = []
        """The conversations of all turns, in the order in which they began."""
        self.answer = answer
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> "RoundEngine":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(self._with_rounds(work), self._loop).result()

    async def _with_rounds(self, work: Coroutine[Any, Any, Result]) -> Result:
        rounds = asyncio.get_running_loop().create_task(self._pass_rounds())
        try:
            return await work
        finally:
            rounds.cancel()

    async def _pass_rounds(self) -> None:
        while True:
            for _ in range(_STEPS):
                await asyncio.sleep(0)
            self.rounds += bool(self._waiting)
            self.most_in_flight = max(self.most_in_flight, len(self._waiting))
            for future, left in list(self._waiting.items()):
                self._waiting[future] = left - 1
                if left == 1 and not future.done():
                    future.set_result(None)

    async def sample(self, request: GenerationRequest) -> Generation:
        self.asked.append(request.conversation)
        generation = self.answer(request)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = len(generation.token_ids)
        try:
            await future
        finally:
            del self._waiting[future]
        return generation


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
