from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path

import pytest

from erl_pipeline.views.trackers import TensorBoard
from storage.errors import StoreError
from tests.erl_pipeline.views.events import scalars
from tests.stage_records import NOON


def test_a_record_that_cannot_be_gone_on_with_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "events.old").write_text("old")
    (tmp_path / "tensorboard" / "mark").write_text("nonsense")
    writer = TensorBoard(tmp_path)
    writer.forget(0)
    writer.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert file.name.startswith("events.000001.out.tfevents.")


def test_a_later_start_adds_a_file_and_says_which_steps_no_longer_count(tmp_path: Path) -> None:
    first = TensorBoard(tmp_path)
    first.forget(0)
    for iteration in (0, 1, 2):
        first.log(iteration, {"update_policy/loss": float(iteration)}, NOON)
    first.flush("1 0123")
    first.close()

    second = TensorBoard(tmp_path)
    assert second.mark() == "1 0123"
    second.forget(2)
    second.log(2, {"update_policy/loss": 20.0}, NOON)
    second.close()
    names = sorted(path.name for path in (tmp_path / "tensorboard").glob("events.*"))
    assert [name[:13] for name in names] == ["events.000001", "events.000002"]
    found = scalars(tmp_path / "tensorboard")
    losses = {step: values for (tag, step), values in found.items() if tag == "update_policy/loss"}
    assert losses == {0: [0.0], 1: [1.0], 2: [20.0]}


def test_a_folder_that_cannot_be_written_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the run's folder should be")
    with pytest.raises(StoreError, match="cannot write"):
        TensorBoard(tmp_path / "run").forget(0)


def test_a_full_disk_is_an_error_and_no_endless_wait(tmp_path: Path) -> None:
    writer = TensorBoard(tmp_path)
    writer.forget(0)
    assert writer._events is not None
    # /dev/full answers every write as a full disk does.
    writer._events._py_recordio_writer._writer = full = io.BufferedWriter(io.FileIO("/dev/full", "w"))
    writer._events.write_event(writer._events._event)  # into the buffer
    with pytest.raises(StoreError, match="the disk is full"):
        writer.flush()
    with suppress(OSError):
        full.close()
