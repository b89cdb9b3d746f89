"""The log of a served policy."""

import errno
import fcntl
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import pytest

from storage.errors import DamagedRecord, InputError, StoreError
from storage.serving.aliases import alias_changes, alias_file, change_alias, current_aliases
from storage.serving.rewriting import is_being_written
from storage.serving.traffic import EpisodeEnd, ReadTraffic, Record, TrafficLog, read_traffic, segments
from tests.storage.serving.aliases import alias_change

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def end(episode: str) -> EpisodeEnd:
    return EpisodeEnd(episode_id=episode, tenant="acme", received=NOON)


def records(store: Path, found: ReadTraffic | None = None) -> list[Record]:
    return list(read_traffic(segments(str(store), "served"), found or ReadTraffic()))


def test_what_was_appended_is_read_after_it_was_synced(tmp_path: Path) -> None:
    log = TrafficLog(str(tmp_path), "served")
    log.append([end("one"), end("two")])

    assert (log.waiting, records(tmp_path)) == (2, [])

    log.sync()

    assert (log.waiting, records(tmp_path)) == (0, [end("one"), end("two")])


def test_a_segment_is_locked_alone_through_a_file_that_is_open_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS refuses it for one that is open only to be read."""
    log = TrafficLog(str(tmp_path), "served")
    flock, modes = fcntl.flock, list[int]()

    def noted(file: IO[bytes], kind: int) -> None:
        modes.append(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE)
        flock(file, kind)

    monkeypatch.setattr(fcntl, "flock", noted)
    assert is_being_written(log.path)
    assert modes == [os.O_RDWR]


def test_a_disk_that_fails_in_the_middle_of_a_line_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of it is written, and then the disk takes neither the rest nor a shorter file."""
    log = TrafficLog(str(tmp_path), "served")
    log.append([end("one")])
    log.sync()
    log.append([end("two")])
    write = os.write

    def half(descriptor: int, content: bytes) -> int:
        monkeypatch.setattr(os, "write", fails)
        return write(descriptor, content[:10])

    def fails(*_: object) -> int:
        raise OSError(errno.EROFS, "read-only file system")

    monkeypatch.setattr(os, "write", half)
    monkeypatch.setattr(os, "ftruncate", fails)
    with pytest.raises(StoreError):
        log.sync()
    assert log.waiting == 1
    monkeypatch.undo()
    log.append([end("three")])
    log.close()
    found = ReadTraffic()
    assert records(tmp_path, found) == [end("one"), end("two"), end("three")]
    assert found.torn == 0


def test_the_segments_of_two_servers_are_read_in_the_order_of_their_beginning(tmp_path: Path) -> None:
    first, second = (TrafficLog(str(tmp_path), "served") for _ in range(2))
    second.append([end("two")])
    second.close()
    first.append([end("one")])
    first.close()

    assert records(tmp_path) == [end("one"), end("two")]


def test_a_segment_without_records_leaves_no_file(tmp_path: Path) -> None:
    TrafficLog(str(tmp_path), "served").close()

    assert segments(str(tmp_path), "served") == []


def test_a_record_that_a_kill_cut_short_is_counted_and_left_out(tmp_path: Path) -> None:
    log = TrafficLog(str(tmp_path), "served")
    log.append([end("one"), end("two")])
    log.close()
    log.path.write_bytes(log.path.read_bytes()[:-10])
    found = ReadTraffic()

    assert records(tmp_path, found) == [end("one")]
    assert found.torn == 1


def test_a_record_that_was_changed_is_refused_with_its_line(tmp_path: Path) -> None:
    log = TrafficLog(str(tmp_path), "served")
    log.append([end("one"), end("two")])
    log.close()
    log.path.write_bytes(log.path.read_bytes().replace(b'"one"', b'"ten"'))

    with pytest.raises(DamagedRecord, match="line 1 is not as it was written"):
        records(tmp_path)


def test_a_store_that_cannot_append_serves_nothing() -> None:
    with pytest.raises(InputError, match="local disk"):
        TrafficLog("memory://served", "served")


def test_the_last_change_of_an_alias_holds(tmp_path: Path) -> None:
    changes = [alias_change("a"), alias_change("b", "candidate"), alias_change("b")]
    for each in changes:
        change_alias(str(tmp_path), "served", each)

    assert alias_changes(str(tmp_path), "served") == changes
    assert {name: each.checkpoint_id for name, each in current_aliases(str(tmp_path), "served").items()} == {
        "production": "b",
        "candidate": "b",
    }


def test_a_change_that_a_kill_cut_short_never_happened(tmp_path: Path) -> None:
    for checkpoint in "ab":
        change_alias(str(tmp_path), "served", alias_change(checkpoint))
    path = alias_file(str(tmp_path), "served")
    path.write_bytes(path.read_bytes()[:-5])

    assert current_aliases(str(tmp_path), "served")["production"].checkpoint_id == "a"

    change_alias(str(tmp_path), "served", alias_change("c"))

    assert [each.checkpoint_id for each in alias_changes(str(tmp_path), "served")] == ["a", "c"]
