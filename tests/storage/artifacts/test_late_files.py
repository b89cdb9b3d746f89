"""Files written beside the stages that come next: whoever needs them waits, and hears of failures."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.artifacts.late_files import LateFiles, wait_until_whole
from storage.errors import StoreError

WAIT = 20.0


@pytest.fixture
def late() -> Iterator[LateFiles]:
    with LateFiles() as files:
        yield files


def parts(*texts: bytes) -> Iterator[memoryview]:
    return iter([memoryview(text) for text in texts])


def held(goes_on: threading.Event) -> Iterator[memoryview]:
    yield memoryview(b"one ")
    assert goes_on.wait(WAIT)
    yield memoryview(b"two")


def test_a_reader_waits_until_a_file_is_whole_though_it_moves(tmp_path: Path, late: LateFiles) -> None:
    goes_on, reading = threading.Event(), threading.Event()
    (tmp_path / "staging").mkdir()
    late.begin({tmp_path / "staging" / "file": held(goes_on)})
    assert (tmp_path / "staging" / "file").exists(), "it has its name at once"
    (tmp_path / "staging").rename(tmp_path / "place")
    found: list[bytes] = []

    def read() -> None:
        reading.set()
        wait_until_whole(tmp_path / "place" / "file", 7)
        found.append((tmp_path / "place" / "file").read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    assert reading.wait(WAIT)
    reader.join(0.3)
    assert not found
    goes_on.set()
    reader.join(WAIT)
    assert found == [b"one two"]
    late.wait()


def test_the_second_file_is_begun_after_the_first_is_whole(tmp_path: Path, late: LateFiles) -> None:
    goes_on = threading.Event()
    late.begin({tmp_path / "first": held(goes_on)})
    threading.Timer(0.2, goes_on.set).start()
    late.begin({tmp_path / "second": parts(b"three")})
    assert (tmp_path / "first").read_bytes() == b"one two"
    wait_until_whole(tmp_path / "second", 5)


def test_an_error_of_the_writing_reaches_every_waiter(tmp_path: Path, late: LateFiles) -> None:
    def full() -> Iterator[memoryview]:
        yield memoryview(b"x" * 100)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    late.begin({tmp_path / "file": full()})
    for _ in range(2):
        with pytest.raises(StoreError, match="No space left on device"):
            late.wait()
    with pytest.raises(StoreError, match=r"cannot write .*file: No space left on device"):
        wait_until_whole(tmp_path / "file", 200)


def test_an_error_of_any_other_kind_is_told_too(tmp_path: Path, late: LateFiles) -> None:
    def wrong() -> Iterator[memoryview]:
        yield memoryview(b"x")
        raise RuntimeError("a tensor is gone")

    late.begin({tmp_path / "file": wrong()})
    with pytest.raises(StoreError, match="a tensor is gone"):
        wait_until_whole(tmp_path / "file", 200)
    with pytest.raises(RuntimeError, match="a tensor is gone"):
        late.wait()


def _die_in_between(folder: Path) -> None:
    def killed() -> Iterator[memoryview]:
        yield memoryview(b"x" * 100)
        os.kill(os.getpid(), signal.SIGKILL)

    LateFiles().begin({folder / "file": killed()})
    threading.Event().wait(WAIT)


def test_the_death_of_the_writer_is_no_hang(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_die_in_between, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with pytest.raises(StoreError, match="the process that wrote it has ended"):
        wait_until_whole(tmp_path / "file", 200)
