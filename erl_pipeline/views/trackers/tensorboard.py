"""A run's numbers in the form that TensorBoard reads."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.summary import text

from erl_pipeline.views.trackers.writer import Mark, stage_numbers
from storage.artifacts.manifest import Manifest
from storage.filesystem import open_root, replace_file, store_errors
from storage.runs.warnings import RunWarning

_MARK = TypeAdapter(Mark)
_NUMBERED = re.compile(r"events\.(\d{6,})\.out\.tfevents\..*")


class TensorBoardWriter:
    """Event files in `tensorboard` under a run's folder, one for each start, in the order of their names.

    `tensorboard --logdir store/runs` shows all runs of a store. What a later start writes again is shown
    once: a `START` event tells TensorBoard from which step on older events no longer count. `mark.json`,
    beside the files, says how far they go.

    tensorboardX's own `SummaryWriter` is not used: it writes in a thread, and waits for that thread for ever
    if the disk is full. Here the caller gets the error.

    Every method raises StoreError when the files cannot be written.
    """

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / "tensorboard"
        self._events: EventsWriter | None = None

    def mark(self) -> Mark | None:
        """How far the files go; None if there is no mark or it cannot be read: all is then written again."""
        path = self._folder / "mark.json"
        with store_errors("read", path):
            if not path.is_file():
                return None
            content = path.read_bytes()
        try:
            return _MARK.validate_json(content)
        except ValidationError:
            return None

    def set_mark(self, mark: Mark) -> None:
        """Remember how far the files go; what was flushed is on disk before the mark is."""
        path = self._folder / "mark.json"
        with store_errors("write", path):
            if self._events is not None:
                descriptor = os.open(self._events._file_name, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            replace_file(open_root(str(self._folder)), str(path), _MARK.dump_json(mark))

    def supersede(self, iteration: int) -> None:
        """Make TensorBoard ignore older events of this step and later ones; at 0, remove all files."""
        with store_errors("write", self._folder):
            if iteration == 0:
                self.close()
                if self._folder.exists():
                    shutil.rmtree(self._folder)
            begun = SessionLog(status=SessionLog.START)
            self._open().write_event(Event(wall_time=time.time(), step=iteration, session_log=begun))

    def write(self, iteration: int, manifest: Manifest) -> None:
        """Add scalars with the time at which the artifact was finished; written again, they are the same."""
        values = [
            Summary.Value(tag=name, simple_value=value) for name, value in stage_numbers(manifest).items()
        ]
        event = Event(
            wall_time=manifest.finished_at.timestamp(), step=iteration, summary=Summary(value=values)
        )
        with store_errors("write", self._folder):
            self._open().write_event(event)

    def warn(self, warning: RunWarning) -> None:
        """Add the warning as a text, with the time at which it was first given."""
        event = Event(
            wall_time=warning.said_at.timestamp(),
            step=warning.iteration,
            summary=text(f"warnings/{warning.kind}", warning.sentence),
        )
        with store_errors("write", self._folder):
            self._open().write_event(event)

    def flush(self) -> None:
        """Write all that is buffered, so that an open TensorBoard finds it."""
        with store_errors("write", self._folder):
            if self._events is not None:
                self._events.flush()

    def close(self) -> None:
        """Write what is left and close the file."""
        with store_errors("write", self._folder):
            if self._events is not None:
                events, self._events = self._events, None
                events.close()

    def _open(self) -> EventsWriter:
        if self._events is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            # TensorBoard reads the files in the order of their names. Names made of times alone could be
            # equal, or come from different clocks.
            found = [_NUMBERED.fullmatch(path.name) for path in self._folder.iterdir()]
            number = max((int(match[1]) for match in found if match), default=0) + 1
            self._events = EventsWriter(str(self._folder / f"events.{number:06d}"))
        return self._events
