import asyncio
import threading
from typing import Any

import pytest

from erl_pipeline.environments.interface import Transition
from erl_pipeline.environments.messages import AssistantTurn, ToolSchema, user_message
from erl_pipeline.environments.threads import in_threads


class Blocking:
    """Records the thread of each call; a step waits until it is released."""

    instructions = "Act."
    tools: tuple[ToolSchema, ...] = ()

    def __init__(self, error: BaseException | None = None) -> None:
        self.threads: list[threading.Thread] = []
        self.let_go = threading.Event()
        self._error = error

    def reset(self) -> str:
        self.threads.append(threading.current_thread())
        return "a door"

    def step(self, turn: AssistantTurn) -> Transition:
        self.threads.append(threading.current_thread())
        if self._error is not None:
            raise self._error
        assert self.let_go.wait(timeout=60.0)
        return Transition([user_message(turn.text)], 1.0, done=True)

    def feedback(self) -> str:
        self.threads.append(threading.current_thread())
        return "It opened."

    def trace(self) -> str:
        return "open"

    def close(self) -> None:
        self.threads.append(threading.current_thread())
        self.let_go.set()


def test_all_calls_are_made_in_one_thread_beside_the_event_loop() -> None:
    blocking = Blocking()

    async def play() -> Transition:
        environment = in_threads(blocking)
        assert (environment.instructions, environment.trace()) == ("Act.", "open")
        assert await environment.reset() == "a door"
        step = asyncio.ensure_future(environment.step(AssistantTurn("open")))
        await asyncio.sleep(0)  # the event loop continues while the step waits
        blocking.let_go.set()
        transition = await step
        assert await environment.feedback() == "It opened."
        await environment.close()
        return transition

    assert asyncio.run(play()) == Transition([user_message("open")], 1.0, done=True)
    (thread,) = set(blocking.threads)
    assert thread is not threading.current_thread()
    thread.join(timeout=60.0)
    assert not thread.is_alive()


def test_a_call_that_hangs_is_given_up_and_closed_from_another_thread() -> None:
    blocking = Blocking()

    async def play() -> None:
        environment = in_threads(blocking)
        await environment.reset()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await environment.step(AssistantTurn("open"))
        await environment.close()

    asyncio.run(play())
    reset, step, close = blocking.threads
    assert reset is step
    assert close is not step
    step.join(timeout=60.0)
    assert not step.is_alive()


@pytest.mark.parametrize("error", [ValueError("bad"), StopIteration(), SystemExit(1)])
def test_what_it_raises_arrives_as_an_error(error: BaseException) -> None:
    async def play() -> Any:
        environment = in_threads(Blocking(error))
        try:
            return await environment.step(AssistantTurn("open"))
        finally:
            await environment.close()

    with pytest.raises(ValueError if isinstance(error, ValueError) else RuntimeError):
        asyncio.run(play())
