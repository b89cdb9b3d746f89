"""Work that ends cleanly when a signal asks it to stop."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from flows.signals import call_beside_signals

T = TypeVar("T")

SHOW_CURSOR = "\x1b[?25h"

SAME_REQUEST_SECONDS = 0.5
"""A signal that comes so soon after the first is the same request: `timeout` sends each one twice, to the
process and to its group."""


class StopRequest:
    """A request to stop: the event that the work checks, and the signal that asked for it."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.signal_number: int | None = None
        self.asked_at = 0.0

    @property
    def exit_status(self) -> int:
        """The status that a shell expects after a signal ended a process: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.signal_number or signal.SIGINT)


def call_interruptibly(
    work: Callable[[], T],
    stop: StopRequest,
    tell: Callable[[str], None],
    after: str = "the commit in progress",
) -> T:
    """Call `work` in a thread of its own while this one, the main thread, waits for signals.

    The first SIGINT or SIGTERM only sets `stop`, and `work` ends when it next checks it. A second one,
    later than `SAME_REQUEST_SECONDS`, ends the process immediately.

    Args:
        tell: shows the user one line.
        after: what a first signal lets end, for that line.
    """

    def handle(number: int) -> None:
        if stop.event.is_set():
            if time.monotonic() - stop.asked_at < SAME_REQUEST_SECONDS:
                return
            if sys.stderr.isatty():
                os.write(2, SHOW_CURSOR.encode())
            os._exit(128 + number)
        stop.signal_number = number
        stop.asked_at = time.monotonic()
        stop.event.set()
        tell(f"Stopping after {after}; press Ctrl-C again to stop immediately.")

    return call_beside_signals(work, handle)
