import json

import pytest

from storage.errors import StoreError
from storage.runs.records import read_record, record_bytes

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
