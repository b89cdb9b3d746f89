"""Whether an artifact's files are those that its manifest names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from storage.artifacts.manifest import TABLE_KEY, FileEntry, Manifest
from storage.artifacts.sealing import open_document, says_other_version
from storage.errors import DamagedArtifact
from storage.filesystem import sha256_file, store_errors
from storage.texts import counted

Problems = list[str]
"""What is wrong with something, one sentence for each fault; empty when it is whole."""


def relative_files(folder: Path) -> list[str]:
    """Names of all files under a folder, with `/`, sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def describe_files(folder: Path, rows: Mapping[str, int]) -> list[FileEntry]:
    """The manifest's entries for the files of a folder.

    Raises ValueError when `rows` names a file that is not there or that holds another number of rows.
    """
    import pyarrow.parquet as pq

    names = relative_files(folder)
    missing = sorted(set(rows) - set(names))
    if missing:
        raise ValueError(f"rows are given for files that were not written: {', '.join(missing)}")
    entries = []
    for name in names:
        path = folder / name
        count, table = None, None
        if name.endswith(".parquet"):
            footer = pq.read_metadata(path)
            name_of_table = (footer.metadata or {}).get(TABLE_KEY)
            count, table = footer.num_rows, None if name_of_table is None else name_of_table.decode()
            if rows.get(name, count) != count:
                raise ValueError(f"{name} holds {count} rows, not {rows[name]}")
        size = path.stat().st_size
        entries.append(FileEntry(path=name, sha256=sha256_file(path), bytes=size, rows=count, table=table))
    return entries


def parse_manifest(content: bytes, artifact_id: str, where: str) -> Manifest:
    """The manifest that a file's content holds.

    Raises DamagedArtifact when it is cut short, changed or another artifact's, and StoreError when another
    version of this program wrote it.
    """
    document = open_document(content, where)
    if document is None:
        raise DamagedArtifact(
            f"artifact {artifact_id} is damaged: {where} was changed after it was written"
            f"{says_other_version(content)}. `erl-pipeline train CONFIG --check` makes the artifact again."
        )
    try:
        manifest = Manifest.model_validate_json(document)
    except ValidationError as error:
        raise DamagedArtifact(f"artifact {artifact_id} is damaged: {where} is not a manifest.") from error
    if not artifact_id == manifest.artifact_id == manifest.recipe.artifact_id:
        raise DamagedArtifact(
            f"artifact {artifact_id} is damaged: {where} is the manifest of {manifest.recipe.artifact_id}."
        )
    return manifest


def file_problems(files: Sequence[FileEntry], folder: Path, source: str = "") -> Problems:
    """Files that are missing or hold other bytes than their entries say. `source` is where the folder was
    downloaded from; it is empty for the artifact's own folder."""
    problems = []
    shown = source or str(folder)
    with store_errors("read", folder):
        for entry in files:
            path = folder / entry.path
            try:
                found = sha256_file(path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                problems.append(f"{shown}/{entry.path} is missing")
                continue
            if found != entry.sha256:
                problems.append(
                    f"{shown}/{entry.path} has SHA-256 {found} and {path.stat().st_size} bytes, "
                    f"the manifest says {entry.sha256} and {entry.bytes}"
                )
    return problems


def row_problems(files: Sequence[FileEntry], folder: Path) -> Problems:
    """Parquet files that hold another number of rows than their entries say."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    problems = []
    for entry in files:
        if not entry.path.endswith(".parquet"):
            continue
        try:
            rows = pq.read_metadata(folder / entry.path).num_rows
        except pa.ArrowInvalid as error:
            problems.append(f"{folder / entry.path} is not Parquet: {error}")
            continue
        if rows != entry.rows:
            held = counted(rows, "row")
            problems.append(f"{folder / entry.path} holds {held}, the manifest says {entry.rows}")
    return problems
