"""Which of several calls with the same body comes again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from erl_pipeline.episodes.gateway.equal_calls import MOST_UNHEARD, EqualCalls

Answer = asyncio.Task[str]


def among_calls(use: Callable[[EqualCalls[str], Callable[[], Answer]], Awaitable[None]]) -> None:
    """Calls of which none is answered, begun one after the other."""

    async def run() -> None:
        calls, tasks = EqualCalls[str](), list[Answer]()

        async def never() -> str:
            await asyncio.Event().wait()
            raise AssertionError

        def begun() -> Answer:
            tasks.append(asyncio.create_task(never()))
            calls.begin(tasks[-1])
            return tasks[-1]

        await use(calls, begun)
        for task in tasks:
            task.cancel()

    asyncio.run(run())


def here() -> bool:
    return False


def gone() -> bool:
    return True


def test_the_only_call_is_the_one_that_comes_again() -> None:
    async def use(calls: EqualCalls[str], begun: Callable[[], Answer]) -> None:
        assert calls.sent_before() is None
        only = begun()
        calls.await_answer(only, here)
        assert calls.sent_before() is only
        calls.answered(only, here)
        assert calls.sent_before() is only

    among_calls(use)


def test_of_several_it_is_one_whose_clients_have_all_gone() -> None:
    async def use(calls: EqualCalls[str], begun: Callable[[], Answer]) -> None:
        first, second = begun(), begun()
        calls.await_answer(first, here)
        calls.await_answer(second, here)
        # A connection that was lost without a word looks like one that is there.
        assert calls.sent_before() is None
        calls.await_answer(first, gone)
        assert calls.sent_before() is None
        calls.unheard[second] = [gone, gone]
        assert calls.sent_before() is second

    among_calls(use)


def test_an_answer_that_one_client_has_heard_is_nobody_elses() -> None:
    """Also where another one waited for it last, and has gone."""

    async def use(calls: EqualCalls[str], begun: Callable[[], Answer]) -> None:
        first = begun()
        calls.await_answer(first, here)
        calls.await_answer(first, gone)
        calls.answered(first, gone)
        calls.answered(first, here)
        begun()
        assert calls.sent_before() is None

    among_calls(use)


def test_answers_that_nobody_fetches_are_not_kept_without_end() -> None:
    async def use(calls: EqualCalls[str], begun: Callable[[], Answer]) -> None:
        many = [begun() for _ in range(MOST_UNHEARD + 3)]
        for call in many:
            calls.await_answer(call, gone)
        assert list(calls.unheard) == many[3:]
        assert calls.calls == set(many[3:])

    among_calls(use)


def test_a_call_that_failed_is_not_the_one_that_comes_again() -> None:
    async def use(calls: EqualCalls[str], begun: Callable[[], Answer]) -> None:
        failed = begun()
        calls.await_answer(failed, gone)
        calls.forget(failed)
        assert calls.sent_before() is None
        second = begun()
        assert calls.sent_before() is second

    among_calls(use)
