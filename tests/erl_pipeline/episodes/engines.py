"""Engines that answer immediately, or when a test releases the answer."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from erl_pipeline.engines.interface import Generation, GenerationRequest
from tests.erl_pipeline.episodes.script import says

Result = TypeVar("Result")
DOWN = says("down b")
REFLECTION = says("? a b ?")


def answer_to(request: GenerationRequest) -> Generation:
    """The answer to a prompt: a move down into the hole below the start, or a reflection on it."""
    return REFLECTION if "/reflection/" in request.conversation else DOWN


class DownwardBatches:
    """Takes batches; records the conversations of each."""

    policy_version = "policy-1"

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        self.batches.append([request.conversation for request in requests])
        return [answer_to(request) for request in requests]


class DownwardTurns:
    """Takes single turns; a request for which `holds` is true is answered only when it is released."""

    def __init__(self, holds: Callable[[GenerationRequest], bool] = lambda request: False) -> None:
        self.held: list[asyncio.Future[Generation]] = []
        self.asked: list[GenerationRequest] = []
        self._holds = holds

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run(work)

    async def sample(self, request: GenerationRequest) -> Generation:
        self.asked.append(request)
        if not self._holds(request):
            return answer_to(request)
        self.held.append(asyncio.get_running_loop().create_future())
        return await self.held[-1]
