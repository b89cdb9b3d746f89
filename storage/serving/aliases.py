"""Which checkpoint an alias means, such as `production`: a list of changes, of which the last one holds."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from storage.artifacts.sealing import seal, unseal
from storage.errors import DamagedRecord, store_errors
from storage.filesystem import make_folder, open_to_write, sync_folder
from storage.serving.traffic import serving_folder


class AliasChange(BaseModel):
    """One change: from then on an alias means a checkpoint.

    `gate` is what was compared before, and `who` made the change; `reason` is in words.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    alias: str
    checkpoint_id: str
    previous: str | None
    run: str
    """The run that has made the checkpoint."""
    who: str
    reason: str
    gate: dict[str, float | int | str | bool]
    changed: datetime


def alias_file(store_uri: str, run: str) -> Path:
    """The file with the changes of a served run's aliases."""
    return serving_folder(store_uri, run) / "aliases.jsonl"


def alias_changes(store_uri: str, run: str) -> list[AliasChange]:
    """All changes, the oldest first. A last line that a kill cut short does not count.

    Raises DamagedRecord for any other line that is not as it was written.
    """
    path = alias_file(store_uri, run)
    if not path.exists():
        return []
    with store_errors("read", path):
        written = path.read_bytes()
    changes = []
    for number, line in enumerate(written[: written.rfind(b"\n") + 1].splitlines(), start=1):
        content = unseal(line)
        try:
            changes.append(AliasChange.model_validate_json(content or b""))
        except ValidationError as error:
            raise DamagedRecord(
                f"{path}, line {number} is not as it was written; put it back from a copy"
            ) from error
    return changes


def current_aliases(store_uri: str, run: str) -> dict[str, AliasChange]:
    """The last change of each alias."""
    return {change.alias: change for change in alias_changes(store_uri, run)}


def change_alias(store_uri: str, run: str, change: AliasChange) -> None:
    """Append a change; it is on disk when this returns. The run has to be locked (`storage.runs.locks`)."""
    path = alias_file(store_uri, run)
    make_folder(path.parent)
    line = seal(json.dumps(change.model_dump(mode="json"), ensure_ascii=False)) + b"\n"
    with store_errors("write", path):
        written = path.read_bytes() if path.exists() else b""
        with open_to_write(path, "ab") as file:
            file.truncate(written.rfind(b"\n") + 1)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)
