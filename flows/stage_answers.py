"""The messages of a worker about the stage that it computes: progress and warnings, then the manifest or the
error. Each kind of worker decides how to send them to the driver."""

from __future__ import annotations

import pickle
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from erl_pipeline.plan.job import StageJob, StageOutcome, compute
from erl_pipeline.plan.listener import Listener, StageProgress
from erl_pipeline.plan.resources import Resources
from storage.artifacts.manifest import Manifest


@dataclass(frozen=True)
class Told:
    """A call of the listener's method `what`."""

    what: str
    arguments: tuple[Any, ...]

    def tell(self, listener: Listener) -> None:
        """Make that call."""
        getattr(listener, self.what)(*self.arguments)


@dataclass(frozen=True)
class Computed:
    """The stage's artifact is committed."""

    manifest: Manifest


@dataclass(frozen=True)
class Failed:
    """The stage raised this."""

    error: Exception


FromWorker = Told | Computed | Failed


class Teller:
    """A `Listener` that sends its calls as messages to the driver."""

    def __init__(self, send: Callable[[FromWorker], None]) -> None:
        self._send = send

    def stage_started(self, title: str) -> None:
        """Nothing is sent: the driver knows it."""

    def counting(self, title: str, total: int, unit: str) -> None:
        """The stage will count `total` units."""
        self._send(Told("counting", (title, total, unit)))

    def advanced(self, title: str, amount: int, numbers: dict[str, float]) -> None:
        """`amount` more units are done."""
        self._send(Told("advanced", (title, amount, numbers)))

    def waiting(self, title: str, what: str, seconds: float, detail: str) -> None:
        """The stage has waited for `what` this long."""
        self._send(Told("waiting", (title, what, seconds, detail)))

    def stage_finished(self, title: str, outcome: StageOutcome) -> None:
        """Nothing is sent: the driver knows it."""

    def warn(self, message: str) -> None:
        """Send a warning for the user."""
        self._send(Told("warn", (message,)))


def answer(
    job: StageJob, resources: Resources, send: Callable[[FromWorker], None], stop: threading.Event
) -> Computed | Failed:
    """Compute a stage, and meanwhile send its progress and warnings."""
    try:
        return Computed(compute(job, resources, StageProgress(job.planned.title, Teller(send), stop)))
    except Exception as error:  # Whatever a stage raises is raised again in the driver.
        error.add_note("In the worker process:\n" + traceback.format_exc())
        return Failed(_portable(error))


def _portable(error: Exception) -> Exception:
    """An error that can be sent: the error itself if it survives pickling, else one with its traceback."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # Errors of other packages may fail here in any way.
        return RuntimeError("".join(traceback.format_exception(error)))
    return error
