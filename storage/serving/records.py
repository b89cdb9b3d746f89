"""Small lists of sealed records, which are only appended to: changes of aliases, verdicts of gates."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from storage.artifacts.sealing import seal, unseal
from storage.errors import DamagedRecord, store_errors
from storage.filesystem import make_folder, open_to_write, sync_folder

RecordT = TypeVar("RecordT", bound=BaseModel)


def read_records(path: Path, model: type[RecordT]) -> list[RecordT]:
    """The records of a file, the oldest first; none where there is no file. A last line that a kill cut short
    does not count.

    Raises DamagedRecord for any other line that is not as it was written.
    """
    if not path.exists():
        return []
    with store_errors("read", path):
        written = path.read_bytes()
    records = []
    for number, line in enumerate(written[: written.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            records.append(model.model_validate_json(unseal(line) or b""))
        except ValidationError as error:
            raise DamagedRecord(
                f"{path}, line {number} is not as it was written; put it back from a copy"
            ) from error
    return records


def append_record(path: Path, record: BaseModel) -> None:
    """Append a record; it is on disk when this returns. Only one process at a time may do so."""
    make_folder(path.parent)
    line = seal(json.dumps(record.model_dump(mode="json"), ensure_ascii=False)) + b"\n"
    with store_errors("write", path):
        written = path.read_bytes() if path.exists() else b""
        with open_to_write(path, "ab") as file:
            file.truncate(written.rfind(b"\n") + 1)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)
