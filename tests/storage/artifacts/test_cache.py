"""A machine's cache of an object store: who uses it, what is removed first, and what a kill leaves."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.artifacts.cache import COPIES, CacheSettings, LocalCache

PROCESS = """
import sys
from pathlib import Path
from storage.artifacts.cache import CacheSettings, LocalCache

def fetch(folder):
    (folder / "file").write_bytes(bytes(10))
    if sys.argv[2] == "downloads":
        print("begun", flush=True)
        sys.stdin.readline()

scratch = Path(sys.argv[1])
cache = LocalCache(scratch, scratch / "staging", CacheSettings())
cache.get("a", 10, fetch, lambda folder: True)
print("uses", flush=True)
sys.stdin.readline()
"""


def cache_of(folder: Path, limit: int | None = None) -> LocalCache:
    return LocalCache(folder, folder / "staging", CacheSettings(limit_bytes=limit))


def writes(size: int) -> Callable[[Path], None]:
    """A download of one file of this many bytes."""

    def fetch(folder: Path) -> None:
        (folder / "file").write_bytes(bytes(size))

    return fetch


def get(cache: LocalCache, name: str, size: int = 10) -> Path:
    """The cached copy, with one file of this many bytes; it is written if it is missing."""
    return cache.get(name, size, writes(size), lambda _: True)


def held(folder: Path) -> list[str]:
    """Names of the copies in the cache."""
    return sorted(path.parent.name for path in (folder / COPIES).glob("*/file"))


def start(folder: Path, does: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(folder), does],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    """There is room for 30 bytes. a, b and c have 10 each, and a is used again; d of 15 removes two: b and
    c."""
    cache = cache_of(tmp_path, limit=30)
    for moment, name in enumerate("abca"):
        with cache.reading():
            get(cache, name)
        os.utime(tmp_path / COPIES / f"{name}.lock", (moment, moment))
    assert held(tmp_path) == ["a", "b", "c"]
    with cache.reading():
        get(cache, "d", 15)
    assert held(tmp_path) == ["a", "d"]


def test_what_is_used_stays_although_it_is_over_the_limit(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, limit=15)
    with cache.reading():
        get(cache, "a")
        get(cache, "b")
        assert held(tmp_path) == ["a", "b"]
    assert held(tmp_path) == ["b"]


def test_blocks_hold_what_was_opened_in_them(tmp_path: Path) -> None:
    """What the outer block opened stays when the inner one ends; what is marked to be kept stays after
    both."""
    cache = cache_of(tmp_path, limit=0)
    with cache.reading():
        get(cache, "outer")
        with cache.reading():
            get(cache, "inner")
            with cache.staying():
                get(cache, "kept")
        assert held(tmp_path) == ["kept", "outer"]
    assert held(tmp_path) == ["kept"]
    get(cache, "outside")
    with cache.reading():
        get(cache, "other")
    assert held(tmp_path) == ["kept", "outside"]


def test_a_block_of_another_thread_lets_nothing_go_that_this_one_uses(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, limit=0)

    def read() -> None:
        with cache.reading():
            get(cache, "a")
            get(cache, "b")

    with cache.reading():
        get(cache, "a")
        other = threading.Thread(target=read)
        other.start()
        other.join()
        assert held(tmp_path) == ["a"]


def test_what_another_process_uses_stays_until_it_dies(tmp_path: Path) -> None:
    with start(tmp_path, "reads") as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "uses\n"
        cache = cache_of(tmp_path, limit=15)
        with cache.reading():
            get(cache, "b")
        assert held(tmp_path) == ["a"]  # b, which nobody used any more, was removed
        other.kill()
    with cache.reading():
        get(cache, "b")
    assert held(tmp_path) == ["b"]


def test_a_download_that_dies_is_taken_over_by_who_waits_for_it(tmp_path: Path) -> None:
    with start(tmp_path, "downloads") as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "begun\n"
        cache = cache_of(tmp_path)
        got: list[Path] = []
        waiting = threading.Thread(target=lambda: got.append(get(cache, "a")))
        waiting.start()
        other.kill()
        waiting.join(30)
    assert (got[0] / "file").read_bytes() == bytes(10)
    assert list((tmp_path / "staging").iterdir()) == []  # what the dead process had written is removed


def test_a_download_under_way_counts_with_its_whole_size(tmp_path: Path) -> None:
    """Another process is downloading 10 of the 15 bytes: of two more copies of 5 bytes only one fits."""
    with start(tmp_path, "downloads") as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "begun\n"
        cache = cache_of(tmp_path, limit=15)
        for name in "bc":
            with cache.reading():
                get(cache, name, 5)
        assert held(tmp_path) == ["c"]
        other.kill()
    with cache.reading():
        get(cache, "d", 10)
    assert held(tmp_path) == ["c", "d"]  # the download of the dead process no longer counts


def test_a_failed_download_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "file").write_bytes(bytes(5))
        raise OSError("gone")

    cache = cache_of(tmp_path, limit=30)
    with pytest.raises(OSError, match="gone"):
        cache.get("a", 10, fail, lambda _: True)
    assert sorted(path.name for path in (tmp_path / COPIES).iterdir()) == ["gate"]
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_copy_that_is_not_whole_is_fetched_again(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    file = get(cache, "a") / "file"
    file.write_bytes(b"damaged")
    again = cache.get("a", 10, writes(10), lambda folder: (folder / "file").read_bytes() == bytes(10))
    assert (again / "file").read_bytes() == bytes(10)


def test_a_copy_that_was_replaced_is_not_the_one_used_before(tmp_path: Path) -> None:
    one, other = cache_of(tmp_path), cache_of(tmp_path, limit=0)
    with one.reading():
        folder = get(one, "a")
        assert one.used_before("a") == folder
    assert one.used_before("b") is None
    with other.reading():
        get(other, "b")  # makes room
    assert held(tmp_path) == []
    assert one.used_before("a") is None
    with one.reading():
        get(one, "a")
    (tmp_path / COPIES / "a").rename(tmp_path / "old")
    with other.reading():
        get(other, "a")
    assert one.used_before("a") is None


def test_nobody_uses_what_a_store_object_used_that_has_gone(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    get(cache, "a")
    other = cache_of(tmp_path, limit=0)
    with other.reading():
        get(other, "b")
    assert held(tmp_path) == ["a"]
    del cache
    gc.collect()
    with other.reading():
        get(other, "b")
    assert held(tmp_path) == []


def test_what_is_forgotten_goes_unless_it_is_used(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    with cache.reading():
        get(cache, "one-1")
        get(cache, "two-1")
    get(cache, "one-2")
    cache.forget("one")
    assert held(tmp_path) == ["one-2", "two-1"]
