"""What a stage reports from another process: calls of a listener, on their way to the driver."""

import json
import pickle
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from erl_pipeline.plan.stage import Listener


@contextmanager
def sent_whole() -> Iterator[None]:
    """Let an error of a stage be one that can be sent to the driver: the error itself if it survives
    pickling, else one with its traceback."""
    try:
        yield
    except Exception as error:
        error.add_note("In the worker process:\n" + traceback.format_exc())
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # Errors of other packages may fail here in any way.
            raise RuntimeError("".join(traceback.format_exception(error))) from None
        raise


class CallsPassedOn(Listener):
    """A `Listener` that passes its calls on, as their names and arguments; what the driver knows by itself is
    left out."""

    def __init__(self, tell: Callable[[str, list[Any]], None]) -> None:
        self._tell = tell

    def counting(self, title: str, total: int, unit: str) -> None:
        """The stage will count `total` units."""
        self._tell("counting", [title, total, unit])

    def advanced(self, title: str, amount: int, numbers: dict[str, float]) -> None:
        """`amount` more units are done."""
        self._tell("advanced", [title, amount, numbers])

    def waiting(self, title: str, what: str, seconds: float, detail: str) -> None:
        """The stage has waited this long."""
        self._tell("waiting", [title, what, seconds, detail])

    def warn(self, message: str) -> None:
        """Something that a user should know."""
        self._tell("warn", [message])

    def invite(self, invitation: str) -> None:
        """The stage invites other nodes, by a text that the driver understands."""
        self._tell("invite", [invitation])


_BEGUN = "begun"
"""In place of the name of a call: the stage has begun."""


def reports_to(path: Path) -> CallsPassedOn:
    """A listener that appends its calls to a file, one JSON array a line; before them, that the stage has
    begun."""

    def tell(what: str, arguments: list[Any]) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([what, *arguments], default=float) + "\n")

    tell(_BEGUN, [])
    return CallsPassedOn(tell)


class Reports:
    """Reads what `reports_to` writes."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(b"")
        self._file = path.open(encoding="utf-8")
        self._partial = ""
        self.begun = False
        """Whether the stage has begun, as far as it was read."""

    def relay(self, listener: Listener) -> None:
        """Make the calls that have come since the last time."""
        while piece := self._file.readline():
            self._partial += piece
            if piece.endswith("\n"):
                what, *arguments = json.loads(self._partial)
                self._partial = ""
                if what == _BEGUN:
                    self.begun = True
                else:
                    getattr(listener, what)(*arguments)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
