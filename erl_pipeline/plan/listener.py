"""Listeners: what stages do is reported to a progress display, a log, or nobody."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from storage.errors import Interrupted

if TYPE_CHECKING:
    from erl_pipeline.plan.job import StageOutcome


class Listener(Protocol):
    """Takes reports on stages, which it knows by their titles, such as `fine_tune of iteration 3`. May be
    called from any thread."""

    def stage_started(self, title: str) -> None:
        """The computation of a stage has begun."""
        ...

    def counting(self, title: str, total: int, unit: str) -> None:
        """The stage will count `total` units, such as episodes."""
        ...

    def advanced(self, title: str, amount: int, numbers: dict[str, float]) -> None:
        """`amount` more units are done."""
        ...

    def waiting(self, title: str, what: str, seconds: float, detail: str) -> None:
        """The stage has waited for `what` this long; `detail` is the latest news of it."""
        ...

    def stage_finished(self, title: str, outcome: StageOutcome) -> None:
        """The artifact is committed and recorded."""
        ...

    def warn(self, message: str) -> None:
        """Something that a user should know, and that stops nothing."""
        ...


class NullListener:
    """A listener that shows nothing."""

    def stage_started(self, title: str) -> None:
        """Not shown."""

    def counting(self, title: str, total: int, unit: str) -> None:
        """Not shown."""

    def advanced(self, title: str, amount: int, numbers: dict[str, float]) -> None:
        """Not shown."""

    def waiting(self, title: str, what: str, seconds: float, detail: str) -> None:
        """Not shown."""

    def stage_finished(self, title: str, outcome: StageOutcome) -> None:
        """Not shown."""

    def warn(self, message: str) -> None:
        """Not shown."""


class StageProgress:
    """Reports the progress of one stage to a listener."""

    def __init__(self, title: str, listener: Listener, stop: threading.Event) -> None:
        self._title = title
        self._listener = listener
        self._stop = stop

    def begin(self, total: int, unit: str) -> None:
        """The stage will count `total` units, such as episodes."""
        self._listener.counting(self._title, total, unit)

    def advance(self, amount: int, **numbers: float) -> None:
        """`amount` more units are done; `numbers` are what is known of them so far."""
        self._listener.advanced(self._title, amount, numbers)

    def waiting(self, what: str, seconds: float, detail: str) -> None:
        """The stage has waited for `what` this long."""
        self._listener.waiting(self._title, what, seconds, detail)

    def warn(self, message: str) -> None:
        """Something that a user should know, and that stops nothing."""
        self._listener.warn(message)

    def raise_if_stopped(self) -> None:
        """Raise `Interrupted` when the run was asked to stop."""
        if self._stop.is_set():
            raise Interrupted
