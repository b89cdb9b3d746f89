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
        with pytest.raises(StoreError, match=r"run\.json (cannot be read|was changed after it was written)"):
            read_record(bytes(flipped), "run.json")


@pytest.mark.parametrize("written", [b"", b"[]", b"{}", b'{"sha256": 1}', b"\xff"])
def test_what_is_no_record_is_named(written: bytes) -> None:
    with pytest.raises(StoreError, match=r"run\.json (cannot be read|was changed after it was written)"):
        read_record(written, "run.json")
