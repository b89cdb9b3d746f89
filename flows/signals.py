"""Work in another thread while the main thread waits for SIGINT and SIGTERM, so that no signal breaks it."""

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

_LOOK_SECONDS = 0.2


def call_beside_signals(work: Callable[[], T], handle: Callable[[int], None]) -> T:
    """Call `work` in a thread of its own, with this thread's context variables, and return what it returns.

    This thread, which must be the main one, waits meanwhile: signal handlers run in it, so no signal is
    ever raised in the middle of a commit.

    Args:
        handle: is called with the number of each SIGINT and SIGTERM; it sets a flag that `work` checks.
    """

    def handler(number: int, _frame: FrameType | None) -> None:
        handle(number)

    previous = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="work") as pool:
            future = pool.submit(copy_context().run, work)
            # The kernel may give the signal to any thread; Python then calls the handler when this thread
            # next runs. So it must not sleep for longer than a person would wait.
            try:
                while not wait([future], timeout=_LOOK_SECONDS).done:
                    continue
            except BaseException:  # Such as Prefect raises here when it ends the flow run.
                handle(signal.SIGTERM)
                raise
            return future.result()
    finally:
        for number, former in previous.items():
            signal.signal(number, former)
