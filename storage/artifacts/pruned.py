"""What retention has taken from an artifact: a sealed record beside its manifest.

The manifest stays as it was committed, so ids and lineage stay. A file counts as pruned once the record
names it; its bytes are removed afterwards. Of pruned rows the columns that lineage asks for are kept.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from pathlib import Path

import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from storage.artifacts.manifest import FileEntry, Manifest
from storage.artifacts.recipe import canonical_json
from storage.errors import DamagedArtifact
from storage.filesystem import sha256_file, store_errors

PRUNED = "pruned.json"
KEPT_ROWS = "kept_rows"
"""Folder, in an artifact, of the columns that are kept of pruned Parquet files."""

_DROPPED_COLUMNS = (
    "prompt_token_ids",
    "response_token_ids",
    "response_mask",
    "behaviour_logprobs",
    "messages",
)


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PrunedFile(_Record):
    """A file that was taken away: what it was, when, and by which rule."""

    path: str
    sha256: str
    bytes: int
    pruned_at: datetime
    reason: str
    kept: FileEntry | None = None
    """Of a Parquet file, the one that holds the columns that were kept."""


class PruneRecord(_Record):
    """All files that were ever pruned of one artifact."""

    artifact_id: str
    files: list[PrunedFile]
    record_sha256: str = ""
    """Digest of the other fields, so that a changed record is found."""

    def sealed(self) -> PruneRecord:
        """The same record with its own digest filled in."""
        return self.model_copy(update={"record_sha256": self.content_sha256()})

    def content_sha256(self) -> str:
        """Hex SHA-256 of all fields but `record_sha256`."""
        content = canonical_json(self.model_dump(mode="json", exclude={"record_sha256"}))
        return hashlib.sha256(content.encode("utf-8")).hexdigest()

    def of(self, path: str) -> PrunedFile | None:
        """What is recorded of a pruned file, None if it is there."""
        return next((file for file in self.files if file.path == path), None)


def nothing_pruned(artifact_id: str) -> PruneRecord:
    """The record of an artifact that has all its files."""
    return PruneRecord(artifact_id=artifact_id, files=[])


def present_files(manifest: Manifest, pruned: PruneRecord) -> list[FileEntry]:
    """The files that an artifact must have: those that were not pruned, and what was kept of the others."""
    kept = [file.kept for file in pruned.files if file.kept is not None]
    return [entry for entry in manifest.files if pruned.of(entry.path) is None] + kept


def parse_pruned(content: bytes | None, artifact_id: str, where: str) -> PruneRecord:
    """The record in a file; None stands for no file. Raises DamagedArtifact for a changed one."""
    if content is None:
        return nothing_pruned(artifact_id)
    try:
        record = PruneRecord.model_validate_json(content)
    except ValidationError as error:
        raise DamagedArtifact(
            f"artifact {artifact_id} is damaged: {where} is no record of pruned."
        ) from error
    if record.artifact_id != artifact_id or record.content_sha256() != record.record_sha256:
        raise DamagedArtifact(f"artifact {artifact_id} is damaged: {where} was changed after it was written.")
    return record


def keep_lineage_columns(source: Path, target: Path, name: str) -> FileEntry:
    """Write the columns of a Parquet file that lineage asks for, all but tokens and texts of messages.

    `name` is the new file's name within the artifact.
    """
    with store_errors("write", target):
        content = pq.read_table(source)
        kept = content.drop_columns([column for column in _DROPPED_COLUMNS if column in content.column_names])
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(kept, target, compression="zstd", compression_level=3)
        metadata = kept.schema.metadata or {}
        return FileEntry(
            path=name,
            sha256=sha256_file(target),
            bytes=target.stat().st_size,
            rows=kept.num_rows,
            table=metadata[b"table"].decode() if b"table" in metadata else None,
        )
