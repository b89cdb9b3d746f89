from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path

import pytest

from erl_pipeline.metrics.tensorboard import TensorBoardWriter
from storage.errors import StoreError


def test_an_older_record_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "events.old").write_text("old")
    TensorBoardWriter(tmp_path).close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert file.name.startswith("events.out.tfevents.")


def test_a_folder_that_cannot_be_written_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the run's folder should be")
    with pytest.raises(StoreError, match="cannot write"):
        TensorBoardWriter(tmp_path / "run")


def test_a_full_disk_is_an_error_and_no_endless_wait(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    # /dev/full answers every write as a full disk does.
    writer._events._py_recordio_writer._writer = full = io.BufferedWriter(io.FileIO("/dev/full", "w"))
    writer._events.write_event(writer._events._event)  # into the buffer
    with pytest.raises(StoreError, match="the disk is full"):
        writer.flush()
    with suppress(OSError):
        full.close()
