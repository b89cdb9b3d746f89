"""Ending cleanly on Ctrl-C and SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

_LOOK_SECONDS = 0.2
SHOW_CURSOR = "\x1b[?25h"


class Stop:
    """A wish to stop: the event that the work looks at, and the signal that asked for it."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.signal_number: int | None = None

    @property
    def exit_status(self) -> int:
        """What a shell expects of a process that a signal ended: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.signal_number or signal.SIGINT)


def call_interruptibly(work: Callable[[], T], stop: Stop, tell: Callable[[str], None]) -> T:
    """Call `work` in a thread of its own while this one, the main thread, waits for signals.

    Signal handlers run in the main thread, so nothing is ever torn apart in the middle of a commit: the
    first SIGINT or SIGTERM only sets `stop`, and `work` ends when it next looks. A second one ends the
    process at once.

    Args:
        tell: shows the user one line.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.event.is_set():
            if sys.stderr.isatty():
                os.write(2, SHOW_CURSOR.encode())
            os._exit(128 + number)
        stop.signal_number = number
        stop.event.set()
        tell("Stopping after the commit in flight; once more to stop at once.")

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="work") as pool:
            future = pool.submit(work)
            # The kernel may give the signal to any thread; Python then calls the handler when this one next
            # runs, so it must not sleep for longer than a person would wait.
            while not wait([future], timeout=_LOOK_SECONDS).done:
                continue
            return future.result()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
