"""The run that another run was begun from: `STORE/runs/<name>/origin.json`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from storage.errors import StoreError
from storage.filesystem import open_root, read_bytes, write_new
from storage.runs.ledger import read_record, record_bytes

IMPORTED = "imported"
"""Key in the settings of a run that holds imported trajectories; such a run has no other settings."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class BranchOrigin(_Record):
    """A branch: its artifacts are those of `run` before a stage of an iteration, and its own from there."""

    type: Literal["branch"] = "branch"
    run: str
    iteration: int
    stage: str
    """The first stage of `iteration` that the branch does itself."""

    def describe(self) -> str:
        """A phrase that can follow "begun"."""
        return f"from {self.stage} in iteration {self.iteration} of {self.run}"


class OfflineOrigin(_Record):
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
    path = root.join("runs", run_name, "origin.json")
    content = read_bytes(root, path)
    if content is None:
        return None
    try:
        return _ORIGIN.validate_python(read_record(content, path))
    except ValidationError as error:
        raise StoreError(f"{path} is not the origin of a run ({error.error_count()} errors).") from error


def write_origin(store_uri: str, run_name: str, origin: BranchOrigin | OfflineOrigin) -> None:
    """Record what a run was begun from. To be called before its first stage; the origin never changes.

    Raises StoreError when it cannot be written, or when the run already has another origin.
    """
    root = open_root(store_uri)
    path = root.join("runs", run_name, "origin.json")
    content = record_bytes(origin.model_dump(mode="json"))
    if not write_new(root, path, content) and read_origin(store_uri, run_name) != origin:
        raise StoreError(f"run {run_name} has another origin already: see {path}.")
