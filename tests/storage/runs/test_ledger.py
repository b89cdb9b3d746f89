from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from storage.artifacts.sealing import read_record, record_bytes
from storage.errors import DamagedRecord, StoreError
from storage.filesystem import open_root
from storage.runs.ledger import PART_LINES, Ledger, LedgerEntry, end_of_whole_lines


def entry(iteration: int, artifact_id: str = "a") -> LedgerEntry:
    return LedgerEntry(
        iteration=iteration,
        stage="evaluate",
        kind="evaluation",
        key="",
        artifact_id=artifact_id,
        reused=False,
        seconds=1.0,
        recorded_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def test_a_long_torn_line_is_cut_off_though_it_is_longer_than_one_look(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(open_root(str(tmp_path)), str(path), "run")
    ledger.append(entry(1))
    whole = path.read_bytes()
    path.write_bytes(whole + b"x" * 10_000)
    ledger.append(entry(2))
    assert path.read_bytes().startswith(whole + b'{"iteration":2')
    assert [found.iteration for found in ledger.read()] == [1, 2]


def test_a_flipped_bit_is_found_in_the_line_that_has_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(open_root(str(tmp_path)), str(path), "run")
    for iteration in (1, 2):
        ledger.append(entry(iteration))
    whole = path.read_bytes()
    # Bits of the last newline are not flipped: a line without it looks as if a kill had left it, and is
    # recorded again.
    for bit in range(0, 8 * (len(whole) - 1), 61):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        number = 1 if bit // 8 <= whole.index(b"\n") else 2
        with pytest.raises(
            StoreError, match=rf"ledger\.jsonl, line {number} is not a ledger entry as it was"
        ):
            ledger.read()


def test_a_file_that_holds_only_a_torn_line_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b'{"iteration":')
    ledger = Ledger(open_root(str(tmp_path)), str(path), "run")
    ledger.append(entry(1))
    assert [found.iteration for found in ledger.read()] == [1]


class CountingFile(io.BytesIO):
    """Counts the bytes that are read from it."""

    bytes_read = 0

    def read(self, size: int | None = -1) -> bytes:
        content = super().read(size)
        self.bytes_read += len(content)
        return content


def test_the_end_of_a_long_ledger_is_found_without_reading_it() -> None:
    line = entry(1).model_dump_json().encode() + b"\n"
    file = CountingFile(line * 20_000)
    assert end_of_whole_lines(file) == 20_000 * len(line)
    assert file.bytes_read <= 4096
    torn = CountingFile(line * 20_000 + b"x" * 5000)
    assert end_of_whole_lines(torn) == 20_000 * len(line)
    assert torn.bytes_read <= 2 * 4096


def test_in_an_object_store_the_ledger_goes_on_in_parts_and_is_read_as_one(object_store_uri: str) -> None:
    root = open_root(object_store_uri)
    path = root.join("runs", "run", "ledger.jsonl")
    for number in range(2 * PART_LINES + 1):
        Ledger(root, path, "run").append(entry(number))
    assert [found.iteration for found in Ledger(root, path, "run").read()] == list(range(2 * PART_LINES + 1))
    names = sorted(name.rsplit("/", 1)[-1] for name in root.fs.ls(root.join("runs", "run"), detail=False))
    assert names == ["ledger.0001.jsonl", "ledger.0002.jsonl", "ledger.head.json", "ledger.jsonl"]
    assert root.fs.cat_file(path).count(b"\n") == PART_LINES


def written(folder: Path, lines: int, run: str = "run") -> Path:
    """A ledger of this many lines."""
    path = folder / "ledger.jsonl"
    folder.mkdir(exist_ok=True)
    ledger = Ledger(open_root(str(folder)), str(path), run)
    for iteration in range(1, lines + 1):
        ledger.append(entry(iteration))
    return path


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([1, 2, 2, 3], "line 3 does not follow"),
        ([1, 3], "line 2 does not follow"),
        ([2, 3], "line 1 does not follow"),
        ([1, 3, 2], "line 2 does not follow"),
        ([1, 2], "lacks its last lines"),
        ([], "lacks its last lines"),
    ],
)
def test_lines_that_are_doubled_dropped_or_moved_are_found(
    tmp_path: Path, order: list[int], message: str
) -> None:
    path = written(tmp_path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[number - 1] for number in order))
    with pytest.raises(DamagedRecord, match=message) as found:
        Ledger(open_root(str(tmp_path)), str(path), "run").read()
    assert "train CONFIG --name run --check" in str(found.value)


def test_a_ledger_of_another_run_and_a_lost_head_are_found(tmp_path: Path) -> None:
    path = written(tmp_path / "a", 2, "a")
    with pytest.raises(DamagedRecord, match=r"line 1 is of run a"):
        Ledger(open_root(str(tmp_path)), str(path), "b").read()
    (tmp_path / "a" / "ledger.head.json").unlink()
    with pytest.raises(DamagedRecord, match=r"ledger\.head\.json is missing"):
        Ledger(open_root(str(tmp_path)), str(path), "a").read()


def test_a_kill_between_a_line_and_the_head_loses_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, 1)
    head = tmp_path / "ledger.head.json"
    earlier = head.read_bytes()
    ledger = Ledger(open_root(str(tmp_path)), str(path), "run")
    ledger.append(entry(2))
    head.write_bytes(earlier)
    assert [found.iteration for found in ledger.read()] == [1, 2]
    ledger.append(entry(3))
    assert [found.iteration for found in ledger.read()] == [1, 2, 3]
    one = written(tmp_path / "one", 1)
    (tmp_path / "one" / "ledger.head.json").unlink()  # killed before the first head
    assert len(Ledger(open_root(str(tmp_path)), str(one), "run").read()) == 1


CONTENT = {"name": "lake", "config": {"seed": 0, "rate": 0.5, "memory": None, "text": "größer"}}


def test_a_record_is_read_as_it_was_written() -> None:
    assert read_record(record_bytes(CONTENT), "run.json") == CONTENT


def test_every_flipped_bit_of_a_record_is_found() -> None:
    written = record_bytes(CONTENT)
    for bit in range(8 * len(written)):
        flipped = bytearray(written)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StoreError, match=r"run\.json was changed after it was written"):
            read_record(bytes(flipped), "run.json")


@pytest.mark.parametrize("written", [b"", b"[]", b"\xff", record_bytes(CONTENT)[:-20]])
def test_what_is_no_record_is_named(written: bytes) -> None:
    with pytest.raises(StoreError, match=r"run\.json was changed after it was written"):
        read_record(written, "run.json")


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ('{"name": "lake", "config": {}}', "an earlier version .* no schema version, and .* version 3"),
        (
            '{"name": "lake", "config": {}, "sha256": "ab"}',
            "an earlier version .* Use the program that wrote",
        ),
        ('{"schema_version": 2}', "an earlier version .* has schema version 2, and"),
        ('{"schema_version": 4}', "a later version .* Use a newer program, or train into a new store"),
    ],
)
def test_a_record_of_another_version_is_told_from_a_changed_one(written: str, told: str) -> None:
    with pytest.raises(StoreError, match=told):
        read_record(written.encode(), "run.json")


def test_a_later_version_with_the_same_seal_is_named_too() -> None:
    later = record_bytes({**CONTENT, "schema_version": 4})
    assert json.loads(later)["schema_version"] == 4
    with pytest.raises(StoreError, match="schema version 4"):
        read_record(later, "run.json")
