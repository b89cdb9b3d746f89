"""Environments whose methods are plain functions that may block: each in a thread of its own."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Protocol, TypeVar

from erl_pipeline.environments.interface import Environment, Observation, Transition
from erl_pipeline.environments.messages import AssistantTurn, ToolSchema

Result = TypeVar("Result")


class BlockingEnvironment(Protocol):
    """As `Environment`, with plain functions instead of coroutines."""

    @property
    def instructions(self) -> str: ...
    @property
    def tools(self) -> Sequence[ToolSchema]: ...
    def reset(self) -> Observation: ...
    def step(self, turn: AssistantTurn) -> Transition: ...
    def feedback(self) -> str: ...
    def trace(self) -> str: ...
    def close(self) -> None: ...


def in_threads(environment: BlockingEnvironment) -> Environment:
    """The environment with its methods called in one thread, where they may block without stalling others.

    A call that never returns blocks its thread, but neither an episode nor the end of the process. `close`
    is then called in another thread, where it may end what hangs.
    """
    return _Threaded(environment)


async def in_thread(function: Callable[[], Result]) -> Result:
    """What `function` returns or raises, called in a thread of its own. A call that never returns blocks
    nothing but this thread."""
    worker = _Worker()
    try:
        return await worker.call(function)
    finally:
        worker.end()


class _Threaded:
    def __init__(self, environment: BlockingEnvironment) -> None:
        self._environment = environment
        self._worker = _Worker()

    @property
    def instructions(self) -> str:
        return self._environment.instructions

    @property
    def tools(self) -> Sequence[ToolSchema]:
        return self._environment.tools

    async def reset(self) -> Observation:
        return await self._worker.call(self._environment.reset)

    async def step(self, turn: AssistantTurn) -> Transition:
        return await self._worker.call(lambda: self._environment.step(turn))

    async def feedback(self) -> str:
        return await self._worker.call(self._environment.feedback)

    def trace(self) -> str:
        return self._environment.trace()

    async def close(self) -> None:
        worker = _Worker() if self._worker.busy else self._worker
        try:
            await worker.call(self._environment.close)
        finally:
            worker.end()
            self._worker.end()


class _Worker:
    """A thread that calls one function after the other. It is a daemon: a hanging call delays no exit."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.busy = False

    async def call(self, function: Callable[[], Result]) -> Result:
        """What `function` returns or raises. The function goes on even when this call is cancelled."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="environment", daemon=True)
            self._thread.start()
        answer: Future[Result] = Future()

        def work() -> None:
            try:
                result = function()
            except BaseException as raised:  # Whatever it is, it belongs to the episode that asked.
                self.busy = False
                if answer.set_running_or_notify_cancel():
                    answer.set_exception(raised if _can_be_passed_on(raised) else RuntimeError(repr(raised)))
            else:
                self.busy = False
                if answer.set_running_or_notify_cancel():
                    answer.set_result(result)

        self.busy = True
        self._calls.put(work)
        return await asyncio.wrap_future(answer)

    def end(self) -> None:
        """Let the thread end when its call returns."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _can_be_passed_on(error: BaseException) -> bool:
    """A future takes no `StopIteration`, and `SystemExit` of an environment must not end the process."""
    return isinstance(error, Exception) and not isinstance(error, StopIteration)
