"""A committed artifact, ready to be read, and the sealed record of what has been removed from it.

The manifest stays as it was committed, so ids and lineage stay valid. A file counts as pruned once the record
names it; its bytes are removed afterwards. The columns of pruned rows that lineage needs are kept. Of a
redacted file all rows are kept, and some of them say nothing any more (`storage.artifacts.redaction`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from storage.artifacts.manifest import FileEntry, InnerPath, Manifest, describe_file
from storage.artifacts.sealing import SCHEMA_VERSION, Record, open_document, seal
from storage.errors import DamagedArtifact, InputError, PrunedFileError, store_errors
from storage.filesystem import make_folder

if TYPE_CHECKING:
    import pyarrow as pa

PRUNED = "pruned.json"
KEPT_ROWS = "kept_rows"
"""Folder, in an artifact, for the columns of pruned Parquet files that are kept."""

_HALF_RECORD = re.compile(rf"\.{re.escape(PRUNED)}\.[0-9a-f]{{16}}")
NOT_OF_LINEAGE = (
    "prompt_token_ids",
    "response_token_ids",
    "response_mask",
    "behaviour_logprobs",
    "messages",
)
"""Columns that lineage does not need: they go with a pruned file."""
TableChange = Callable[["pa.Table"], "pa.Table"]
"""What becomes of the rows of a file; it is called with some of them at a time and gives as many."""


class PrunedFile(Record):
    """A file that was removed: what it was, when, and by which rule."""

    path: InnerPath
    sha256: str
    bytes: int
    pruned_at: datetime
    reason: str
    kept: FileEntry | None = None
    """For a Parquet file: the file that holds the columns that were kept."""
    redacted: bool = False
    """Whether `kept` has all columns of all rows, with what some rows said taken out."""

    @property
    def replacement(self) -> FileEntry | None:
        """The file to be read instead; None where there is none with all columns."""
        return self.kept if self.redacted else None


class PruneRecord(Record):
    """All files that were ever pruned from one artifact."""

    schema_version: int = SCHEMA_VERSION
    artifact_id: str
    files: list[PrunedFile]

    def document(self) -> bytes:
        """The content of `pruned.json`, sealed."""
        return seal(self.model_dump_json(indent=1))

    def of(self, path: str) -> PrunedFile | None:
        """The entry of a pruned file; None for a file that was not pruned."""
        return next((file for file in self.files if file.path == path), None)


def is_half_record(name: str) -> bool:
    """Whether a file of an artifact is a record that a killed pruning had begun to write."""
    return _HALF_RECORD.fullmatch(name) is not None


def nothing_pruned(artifact_id: str) -> PruneRecord:
    """The record of an artifact that has all its files."""
    return PruneRecord(artifact_id=artifact_id, files=[])


def present_files(manifest: Manifest, pruned: PruneRecord) -> list[FileEntry]:
    """The files that an artifact must have: those that were not pruned, and what was kept of the others."""
    kept = [file.kept for file in pruned.files if file.kept is not None]
    return [entry for entry in manifest.files if pruned.of(entry.path) is None] + kept


def parse_pruned(content: bytes | None, artifact_id: str, where: str) -> PruneRecord:
    """The record in a file's `content`; None means that there is no file. Raises DamagedArtifact for a
    changed file."""
    if content is None:
        return nothing_pruned(artifact_id)
    document = open_document(content, where)
    if document is None:
        raise DamagedArtifact(f"artifact {artifact_id} is damaged: {where} was changed after it was written.")
    try:
        record = PruneRecord.model_validate_json(document)
    except ValidationError as error:
        raise DamagedArtifact(
            f"artifact {artifact_id} is damaged: {where} is no record of pruned files."
        ) from error
    if record.artifact_id != artifact_id:
        raise DamagedArtifact(
            f"artifact {artifact_id} is damaged: {where} is the record of {record.artifact_id}."
        )
    return record


def copy_rows(
    source: Path,
    folder: Path,
    name: str,
    without: Collection[str] = (),
    change: TableChange = lambda rows: rows,
) -> FileEntry:
    """Write the rows of a Parquet file to a new one, `name` in the artifact's folder: without some columns,
    and changed. Only one row group is in memory at a time, and of it only what is kept."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    target = folder / name
    with store_errors("write", target), pq.ParquetFile(source) as content:
        whole = content.schema_arrow
        schema = pa.schema([each for each in whole if each.name not in without], whole.metadata)
        make_folder(target.parent)
        with pq.ParquetWriter(target, schema, compression="zstd", compression_level=3) as writer:
            for group in range(content.num_row_groups):
                writer.write_table(change(content.read_row_group(group, columns=schema.names)))
        return describe_file(folder, name)


class Artifact:
    """A committed artifact whose files were verified when it was opened."""

    def __init__(self, manifest: Manifest, folder: Path, pruned: PruneRecord | None = None) -> None:
        self.manifest = manifest
        self.pruned = pruned or nothing_pruned(manifest.artifact_id)
        self.present_folder = folder
        """The local folder of the files that are left after pruning."""

    @property
    def files(self) -> list[FileEntry]:
        """All files that were committed, also those that were pruned since."""
        return self.manifest.files

    @property
    def folder(self) -> Path:
        """The local folder with all files. Raises PrunedFileError if one of them was pruned."""
        for file in self.pruned.files:
            raise self._pruned(file)
        return self.present_folder

    def path(self, name: str) -> Path:
        """A local file or folder of the artifact, by its name in the manifest; redacted if it was.

        Raises:
            InputError: the artifact does not have it.
            PrunedFileError: retention has pruned it, or a file of the folder.
        """
        for file in self.pruned.files:
            if file.path == name and file.replacement is not None:
                return self.present_folder / file.replacement.path
            if file.path == name or file.path.startswith(name + "/"):
                raise self._pruned(file)
        if not any(entry.path == name or entry.path.startswith(name + "/") for entry in self.files):
            held = ", ".join(entry.path for entry in self.files) or "no files"
            artifact = f"artifact {self.manifest.artifact_id} ({self.manifest.stage})"
            raise InputError(f"{artifact} has no {name}; it has {held}.")
        return self.present_folder / name

    def rows_path(self, name: str) -> Path:
        """Path of a Parquet file; for a pruned one, path of the file with the columns that were kept.

        Raises InputError for a name that the artifact does not have.
        """
        pruned = self.pruned.of(name)
        if pruned is None or pruned.kept is None:
            return self.path(name)
        return self.present_folder / pruned.kept.path

    def rows_paths(self, table: str) -> list[Path]:
        """`rows_path` of each Parquet file that follows the schema of this name."""
        return [self.rows_path(entry.path) for entry in self.manifest.tables(table)]

    def _pruned(self, file: PrunedFile) -> PrunedFileError:
        where = "" if self.manifest.iteration is None else f", iteration {self.manifest.iteration}"
        fact = (
            f"{file.path} of artifact {self.manifest.artifact_id} ({self.manifest.stage}{where}) was "
            f"pruned on {file.pruned_at:%Y-%m-%d} by {file.reason}: its {file.bytes:,} bytes are gone"
        )
        advice = (
            "Choose a later iteration that still has it; or let `train`, `replay --set` or `evaluate` make "
            "it again, which they do when they read it."
        )
        return PrunedFileError(f"{fact}. {advice}", self.manifest.artifact_id, fact)
