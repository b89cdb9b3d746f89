"""Small documents beside the ledger of a run: its identity, what it began from, and warnings to its user."""

import hashlib
import re
import secrets
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from storage.artifacts.sealing import Record, read_as, record_bytes
from storage.errors import StoreError, store_errors
from storage.filesystem import StoreRoot, list_names, open_root, read_bytes, remove, write_new


def run_identity(store_uri: str, name: str) -> str:
    """16 hexadecimal digits that only this run has; it keeps them. The run has to be locked.

    A copy of a store is another store, also at the same path of another machine, since both may be worked on
    at the same time. A folder that was moved gets another identity too. Only a copy of a whole disk, block by
    block, has the same.

    Raises StoreError when the store cannot be read or written.
    """
    root = open_root(store_uri)
    path = root.join("runs", name, "identity")
    token = read_bytes(root, path)
    if token is None:
        token = secrets.token_hex(16).encode()
        write_new(root, path, token, unique=True)
    return hashlib.sha256(token + _place(root, path).encode()).hexdigest()[:16]


def _place(root: StoreRoot, path: str) -> str:
    if not root.local:
        return root.uri.rstrip("/")
    with store_errors("look at", path):
        file = Path(path).resolve()
        found = file.stat()
    # Whoever copies the file gets another inode and another time of change, which nobody can set. The path
    # distinguishes a snapshot of the file system, in which both are the same.
    return f"{file} {found.st_ino} {found.st_ctime_ns}"


IMPORTED = "imported"
"""Key in the settings of a run that holds imported trajectories; such a run has no other settings."""


class BranchOrigin(Record):
    """A branch: its artifacts are those of `run` before a stage of an iteration, and its own from there."""

    type: Literal["branch"] = "branch"
    run: str
    iteration: int
    stage: str
    """The first stage of `iteration` that the branch does itself."""

    def describe(self) -> str:
        """A phrase that can follow "begun"."""
        return f"from {self.stage} in iteration {self.iteration} of {self.run}"


class OfflineOrigin(Record):
    """Training on the stored rollouts of `run`, with no rollouts of its own."""

    type: Literal["offline"] = "offline"
    run: str
    first_iteration: int
    last_iteration: int
    """Each iteration of the new run trains on the stored rollouts of one iteration, in order."""
    checkpoint_id: str | None
    """The checkpoint that training begins with; None for the one that the new run's configuration gives."""
    evaluates: bool

    @property
    def iterations(self) -> int:
        """Number of iterations that the stored rollouts allow."""
        return self.last_iteration - self.first_iteration + 1

    def describe(self) -> str:
        """A phrase that can follow "begun"."""
        start = "" if self.checkpoint_id is None else f" at checkpoint {self.checkpoint_id[:12]}"
        evaluation = "" if self.evaluates else ", without evaluation"
        span = f"{self.first_iteration}..{self.last_iteration}"
        return f"on the stored rollouts of iterations {span} of {self.run}{start}{evaluation}"


Origin = Annotated[BranchOrigin | OfflineOrigin, Field(discriminator="type")]

_ORIGIN: TypeAdapter[BranchOrigin | OfflineOrigin] = TypeAdapter(Origin)


def read_origin(store_uri: str, run_name: str) -> BranchOrigin | OfflineOrigin | None:
    """What a run was begun from; None for a run that was not begun from another.

    Raises StoreError for a file that was changed, or that holds an origin unknown to this program.
    """
    root = open_root(store_uri)
    return read_as(root, root.join("runs", run_name, "origin.json"), _ORIGIN, "the origin of a run")


def write_origin(store_uri: str, run_name: str, origin: BranchOrigin | OfflineOrigin) -> None:
    """Record what a run was begun from. To be called before its first stage; the origin never changes.

    Raises StoreError when it cannot be written, or when the run already has another origin.
    """
    root = open_root(store_uri)
    path = root.join("runs", run_name, "origin.json")
    content = record_bytes(origin.model_dump(mode="json"))
    if not write_new(root, path, content) and read_origin(store_uri, run_name) != origin:
        raise StoreError(f"run {run_name} has another origin already: see {path}.")


_WARNING_FILE = re.compile(r"warning-[a-z_]+\.json")


class RunWarning(Record):
    """One warning. `iteration` is 0 for a warning before the first; `setting` is the setting to look at."""

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


_WARNING = TypeAdapter(RunWarning)


def remove_warnings(store_uri: str, run_name: str) -> None:
    """Remove all warnings of a run."""
    root = open_root(store_uri)
    folder = root.join("runs", run_name)
    for name in list_names(root, folder):
        if _WARNING_FILE.fullmatch(name):
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
    names = filter(_WARNING_FILE.fullmatch, list_names(root, folder))
    read = [read_as(root, f"{folder}/{name}", _WARNING, "a warning of a run") for name in names]
    found = [warning for warning in read if warning is not None]
    return sorted(found, key=lambda warning: (warning.iteration, warning.kind))
