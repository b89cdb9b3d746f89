"""Which checkpoint an alias means, such as `production`: a list of changes, of which the last one holds."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from storage.filesystem import open_root
from storage.serving.records import append_record, read_records
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
    return read_records(alias_file(store_uri, run), AliasChange)


def current_aliases(store_uri: str, run: str) -> dict[str, AliasChange]:
    """The last change of each alias."""
    return {change.alias: change for change in alias_changes(store_uri, run)}


def change_alias(store_uri: str, run: str, change: AliasChange) -> None:
    """Append a change; it is on disk when this returns. The run has to be locked (`storage.runs.locks`)."""
    append_record(alias_file(store_uri, run), change)


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
