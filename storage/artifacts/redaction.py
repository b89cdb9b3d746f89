"""Redaction: some rows of a committed Parquet file lose what they say; the rows and their links stay."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from storage.artifacts.artifact import (
    KEPT_ROWS,
    PRUNED,
    Artifact,
    PrunedFile,
    PruneRecord,
    TableChange,
    copy_rows,
)
from storage.artifacts.layout import StoreLayout
from storage.errors import InputError, store_errors
from storage.filesystem import replace_file, sync_folder, sync_tree


def redact_files(
    layout: StoreLayout, artifact: Artifact, changes: Mapping[str, TableChange], reason: str
) -> None:
    """Replace Parquet files of an opened artifact by changed ones, and record it.

    The record is written after the new files and before the old ones go. What a kill leaves behind belongs to
    no record, and the next call removes it, also one without changes.

    Raises InputError for a file that the artifact does not have, or for a store that is not local.
    """
    root, folder, manifest = layout.root, artifact.present_folder, artifact.manifest
    if not root.local:
        raise InputError(f"{root.uri}: only files of a store on a local disk can be redacted")
    root.refuse_link(f"{folder}/{KEPT_ROWS}")
    files = {file.path: file for file in artifact.pruned.files}
    for name, change in changes.items():
        source, before = artifact.rows_path(name), files.get(name)
        committed = next(entry for entry in manifest.files if entry.path == name)
        kept = copy_rows(source, folder, f"{KEPT_ROWS}/{secrets.token_hex(8)}/{name}", change=change)
        files[name] = PrunedFile(
            path=name,
            sha256=committed.sha256,
            bytes=committed.bytes,
            pruned_at=datetime.now(UTC),
            reason=reason,
            kept=kept,
            redacted=before is None or before.redacted,
        )
    if changes:
        sync_tree(folder)
        record = PruneRecord(artifact_id=manifest.artifact_id, files=list(files.values()))
        replace_file(root, layout.of(manifest.stage, manifest.artifact_id, PRUNED), record.document())
    _remove_unrecorded(folder, files)


def _remove_unrecorded(folder: Path, files: Mapping[str, PrunedFile]) -> None:
    """Remove the old bytes of pruned files, and kept rows that the record does not name."""
    named = {folder / file.kept.path for file in files.values() if file.kept is not None}
    kept_rows = [path for path in (folder / KEPT_ROWS).rglob("*") if path.is_file()]
    for path in [*(folder / name for name in files), *kept_rows]:
        if path not in named and path.exists():
            with store_errors("remove", path):
                path.unlink()
                sync_folder(path.parent)
