"""Work beside signals; that signals reach it is in `test_scheduling.py`."""

from __future__ import annotations

from threading import Event
from typing import Any

import pytest

from flows import signals


class _LeaseLostError(BaseException):
    """As Prefect raises an error in the main thread when it ends a flow run."""


def test_what_ends_the_wait_stops_the_work_too(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, stopped = Event(), Event()

    def work() -> None:
        assert stop.wait(20.0)
        stopped.set()

    def lose(*_: Any, **__: Any) -> None:
        raise _LeaseLostError

    monkeypatch.setattr(signals, "wait", lose)
    with pytest.raises(_LeaseLostError):
        signals.call_beside_signals(work, lambda _number: stop.set())
    assert stopped.is_set()
