"""Which checkpoint an alias means, such as `production`, and what gates found of new checkpoints: lists of
sealed records, which are only appended to. The last change of an alias holds."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from storage.artifacts.sealing import Record, read_line, sealed_line
from storage.errors import store_errors
from storage.filesystem import make_folder, open_root, open_to_write, sync_folder
from storage.serving.traffic import serving_folder

RecordT = TypeVar("RecordT", bound=Record)


class AliasChange(Record):
    """One change: from then on an alias means a checkpoint.

    `gate` is what was compared before, and `who` made the change; `reason` is in words.
    """

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
    return _read_records(alias_file(store_uri, run), AliasChange)


def current_aliases(store_uri: str, run: str) -> dict[str, AliasChange]:
    """The last change of each alias."""
    return {change.alias: change for change in alias_changes(store_uri, run)}


def change_alias(store_uri: str, run: str, change: AliasChange) -> None:
    """Append a change; it is on disk when this returns. The run has to be locked (`storage.runs.locks`)."""
    _append_record(alias_file(store_uri, run), change)


def aliased_checkpoints(store_uri: str) -> set[str]:
    """What the aliases of all served runs of a store mean, and what each meant before, so that one command
    can go back to it."""
    root = open_root(store_uri)
    if not root.local:
        return set()
    served = Path(root.join("serving"))
    runs = [folder.name for folder in served.iterdir()] if served.exists() else []
    changes = [change for run in runs for change in current_aliases(store_uri, run).values()]
    return {each for change in changes for each in (change.checkpoint_id, change.previous) if each}


class Verdict(Record):
    """A new checkpoint, compared with the one that served."""

    checkpoint_id: str
    against: str
    """The checkpoint that it was compared with."""
    run: str
    """The run that has made the new checkpoint."""
    passed: bool
    reason: str
    """In words, with the numbers that decided."""
    numbers: dict[str, float | int | str | bool]
    decided: datetime


def gate_file(store_uri: str, run: str) -> Path:
    """The file with the verdicts of a served run's gate."""
    return serving_folder(store_uri, run) / "gates.jsonl"


def verdicts(store_uri: str, run: str) -> list[Verdict]:
    """All verdicts, the oldest first. Raises DamagedRecord as `alias_changes`."""
    return _read_records(gate_file(store_uri, run), Verdict)


def record_verdict(store_uri: str, run: str, verdict: Verdict) -> None:
    """Append a verdict. The run has to be locked."""
    _append_record(gate_file(store_uri, run), verdict)


def _read_records(path: Path, model: type[RecordT]) -> list[RecordT]:
    """The records of a file, the oldest first; none where there is no file. A last line that a kill cut short
    does not count.

    Raises DamagedRecord for any other line that is not as it was written.
    """
    if not path.exists():
        return []
    with store_errors("read", path):
        written = path.read_bytes()
    lines = enumerate(written[: written.rfind(b"\n") + 1].splitlines(), start=1)
    kind = TypeAdapter(model)
    return [read_line(line, kind, f"{path}, line {number}") for number, line in lines]


def _append_record(path: Path, record: Record) -> None:
    """Append a record; it is on disk when this returns. Only one process at a time may do so."""
    make_folder(path.parent)
    with store_errors("write", path):
        written = path.read_bytes() if path.exists() else b""
        with open_to_write(path, "ab") as file:
            file.truncate(written.rfind(b"\n") + 1)
            file.write(sealed_line(record))
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)
