from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path

import pytest

from erl_pipeline.views.trackers.tensorboard import TensorBoardWriter
from erl_pipeline.views.trackers.writer import Mark
from storage.artifacts.store import ArtifactStore
from storage.errors import StoreError
from tests.erl_pipeline.views.trackers.events import scalars
from tests.erl_pipeline.views.trackers.recorded import commit


def test_a_record_that_cannot_be_gone_on_with_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "events.old").write_text("old")
    (tmp_path / "tensorboard" / "mark.json").write_text("{}")
    writer = TensorBoardWriter(tmp_path)
    assert writer.mark() is None
    writer.supersede(0)
    writer.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert file.name.startswith("events.000001.out.tfevents.")


def test_a_later_start_adds_a_file_and_says_which_steps_no_longer_count(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path / "store"))
    first = TensorBoardWriter(tmp_path)
    first.supersede(0)
    for iteration in (0, 1, 2):
        first.write(iteration, commit(store, "update_policy", iteration, float(iteration)))
    first.flush()
    first.set_mark(Mark(1, "0123"))
    first.close()

    second = TensorBoardWriter(tmp_path)
    assert second.mark() == Mark(1, "0123")
    second.supersede(2)
    second.write(2, commit(store, "update_policy", 2, 20.0))
    second.close()
    names = sorted(path.name for path in (tmp_path / "tensorboard").glob("events.*"))
    assert [name[:13] for name in names] == ["events.000001", "events.000002"]
    found = scalars(tmp_path / "tensorboard")
    losses = {step: values for (tag, step), values in found.items() if tag == "update_policy/loss"}
    assert losses == {0: [0.0], 1: [1.0], 2: [20.0]}


def test_a_folder_that_cannot_be_written_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the run's folder should be")
    with pytest.raises(StoreError, match="cannot write"):
        TensorBoardWriter(tmp_path / "run").supersede(0)


def test_a_full_disk_is_an_error_and_no_endless_wait(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    writer.supersede(0)
    assert writer._events is not None
    # /dev/full answers every write as a full disk does.
    writer._events._py_recordio_writer._writer = full = io.BufferedWriter(io.FileIO("/dev/full", "w"))
    writer._events.write_event(writer._events._event)  # into the buffer
    with pytest.raises(StoreError, match="the disk is full"):
        writer.flush()
    with suppress(OSError):
        full.close()
