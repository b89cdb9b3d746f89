from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from storage.artifacts.layout import StagingFolder, abandoned, remove_abandoned

WRITER = """
import signal, sys
from pathlib import Path
from storage.artifacts.layout import StagingFolder
folder = StagingFolder(Path(sys.argv[1]))
(folder.path / "half").write_text("half")
print(folder.path, flush=True)
signal.pause()
"""


def test_a_folder_in_use_is_kept_and_one_of_a_killed_writer_removed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        folder = Path(writer.stdout.readline().strip())
        remove_abandoned(tmp_path)
        assert (folder / "half").exists()
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert (folder / "half").exists()
    remove_abandoned(tmp_path)
    assert not folder.exists()


def test_what_is_locked_is_a_file_that_is_open_for_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS other machines do not see a lock on a folder, and one on a file needs that it may be written."""
    locked: list[tuple[int, int]] = []

    def flock(descriptor: int, _operation: int) -> None:
        locked.append((os.fstat(descriptor).st_mode, fcntl.fcntl(descriptor, fcntl.F_GETFL)))

    monkeypatch.setattr(fcntl, "flock", flock)
    StagingFolder(tmp_path).release()
    ((mode, flags),) = locked
    assert stat.S_ISREG(mode)
    assert flags & os.O_ACCMODE == os.O_RDWR


def test_a_folder_or_a_lock_alone_is_what_a_killed_writer_left(tmp_path: Path) -> None:
    """It was killed between the two, or wrote folders that were locked themselves."""
    (tmp_path / "0123456789abcdef").mkdir()
    (tmp_path / "fedcba9876543210.lock").touch()
    assert abandoned(tmp_path) == [tmp_path / "0123456789abcdef"]
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_in_a_store_that_cannot_be_written_no_folder_counts_as_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "0123456789abcdef").mkdir()

    def refuse(path: Path, *_: int) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(os, "open", refuse)
    assert abandoned(tmp_path) == []


def test_release_removes_the_folder(tmp_path: Path) -> None:
    folder = StagingFolder(tmp_path)
    (folder.path / "file").write_text("x")
    folder.release()
    assert list(tmp_path.iterdir()) == []


def test_there_is_nothing_to_remove_where_nothing_was_written(tmp_path: Path) -> None:
    remove_abandoned(tmp_path / "staging")
    assert not (tmp_path / "staging").exists()
