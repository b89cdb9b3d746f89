"""Warnings given to the user of a run: `STORE/runs/<name>/warning-<kind>.json`, each kind once."""

from __future__ import annotations

import re
from datetime import datetime

from pydantic import BaseModel, ConfigDict, ValidationError

from storage.errors import StoreError
from storage.filesystem import list_names, open_root, read_bytes, remove, write_new
from storage.runs.ledger import read_record, record_bytes

_FILE = re.compile(r"warning-[a-z_]+\.json")


class RunWarning(BaseModel):
    """One warning. `iteration` is 0 for a warning before the first; `setting` is the setting to look at."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    iteration: int
    text: str
    setting: str
    said_at: datetime

    @property
    def sentence(self) -> str:
        """The warning as users see it."""
        where = f"iteration {self.iteration}: " if self.iteration else ""
        return f"{where}{self.text} See {self.setting}."


def remove_warnings(store_uri: str, run_name: str) -> None:
    """Remove all warnings of a run."""
    root = open_root(store_uri)
    folder = root.join("runs", run_name)
    for name in list_names(root, folder):
        if _FILE.fullmatch(name):
            remove(root, root.join("runs", run_name, name))


def record_warning(store_uri: str, run_name: str, warning: RunWarning) -> bool:
    """Write a warning down; False, and nothing changed, if the run has one of this kind already."""
    root = open_root(store_uri)
    path = root.join("runs", run_name, f"warning-{warning.kind}.json")
    return write_new(root, path, record_bytes(warning.model_dump(mode="json")))


def read_warnings(store_uri: str, run_name: str) -> list[RunWarning]:
    """The warnings of a run, by iteration and kind. Raises StoreError for a file that was changed."""
    root = open_root(store_uri)
    folder = root.join("runs", run_name)
    found = []
    for name in list_names(root, folder):
        path = f"{folder}/{name}"
        content = read_bytes(root, path) if _FILE.fullmatch(name) else None
        if content is None:
            continue
        try:
            found.append(RunWarning.model_validate(read_record(content, path)))
        except ValidationError as error:
            raise StoreError(f"{path} is not a warning of a run ({error.error_count()} errors).") from error
    return sorted(found, key=lambda warning: (warning.iteration, warning.kind))
