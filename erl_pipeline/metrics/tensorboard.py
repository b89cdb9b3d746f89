"""A run's numbers as TensorBoard reads them."""

from __future__ import annotations

import shutil
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from erl_pipeline.metrics.writer import stage_numbers
from storage.filesystem import store_errors
from storage.manifest import Manifest


class TensorBoardWriter:
    """An event file in `tensorboard` under a run's folder; an older one is replaced.

    `tensorboard --logdir store/runs` shows all runs of a store. tensorboardX's own `SummaryWriter` writes in
    a thread and would wait for it for ever where the disk is full; here the caller gets the error.

    Every method raises StoreError when the file cannot be written.
    """

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / "tensorboard"
        with store_errors("write", self._folder):
            if self._folder.exists():
                shutil.rmtree(self._folder)
            self._folder.mkdir(parents=True)
            self._events = EventsWriter(str(self._folder / "events"))

    def write(self, iteration: int, manifest: Manifest) -> None:
        """Add scalars with the time at which the artifact was finished: written again, they are the same."""
        values = [
            Summary.Value(tag=name, simple_value=value) for name, value in stage_numbers(manifest).items()
        ]
        event = Event(
            wall_time=manifest.finished_at.timestamp(), step=iteration, summary=Summary(value=values)
        )
        with store_errors("write", self._folder):
            self._events.write_event(event)

    def flush(self) -> None:
        """Have all on disk, where a TensorBoard that is open finds it."""
        with store_errors("write", self._folder):
            self._events.flush()

    def close(self) -> None:
        """Write what is left and close the file."""
        with store_errors("write", self._folder):
            self._events.close()
