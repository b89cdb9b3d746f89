"""Finding rows by id in the Parquet files of many artifacts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import polars as pl

from storage.artifacts import ArtifactStore
from storage.manifest import Manifest
from storage.memory_entries import MEMORY
from storage.parquet import TableFormat, scan_files
from storage.sft import SFT
from storage.trajectories import TRAJECTORIES

Kind = Literal["artifact", "sft_row", "trajectory", "memory_entry"]
RowKind = Literal["sft_row", "trajectory", "memory_entry"]

_TABLES: dict[RowKind, tuple[TableFormat, str]] = {
    "trajectory": (TRAJECTORIES, "trajectory_id"),
    "sft_row": (SFT, "sft_row_id"),
    "memory_entry": (MEMORY, "entry_id"),
}
_TOKENS = (
    "prompt_token_ids",
    "response_token_ids",
    "response_mask",
    "behaviour_logprobs",
    "vector",
    "messages",
)


class LineageRows:
    """The rows of a set of artifacts, read as they are asked for; each artifact is verified first."""

    def __init__(self, store: ArtifactStore, manifests: Sequence[Manifest]) -> None:
        self._store = store
        self._manifests = {manifest.artifact_id: manifest for manifest in manifests}

    def scan(
        self, kind: RowKind, columns: Sequence[str], artifact_ids: Sequence[str] | None = None
    ) -> pl.LazyFrame:
        """Columns of all rows of a kind, with the `artifact_id` that holds each."""
        table, _ = _TABLES[kind]
        holders = {
            str(path): artifact_id
            for artifact_id in (self._manifests if artifact_ids is None else artifact_ids)
            for path in self._files(artifact_id, table)
        }
        frame = scan_files([Path(path) for path in holders], table, path_column="artifact_id")
        return frame.select(*columns, pl.col("artifact_id").replace(holders))

    def _files(self, artifact_id: str, table: TableFormat) -> list[Path]:
        """An artifact's files of one format."""
        names = [entry.path for entry in self._manifests[artifact_id].files if entry.table == table.name]
        return [self._store.open(artifact_id).path(name) for name in names]

    def matches(self, prefix: str) -> Iterator[tuple[Kind, str]]:
        """Everything whose id begins with `prefix`."""
        for artifact_id in self._manifests:
            if artifact_id.startswith(prefix):
                yield "artifact", artifact_id
        for kind, (_, column) in _TABLES.items():
            ids = self.scan(kind, [column]).select(column)
            for row_id in (
                ids.filter(pl.col(column).str.starts_with(prefix)).unique().collect()[column].sort()
            ):
                yield kind, row_id

    def row(self, kind: Kind, identifier: str, near: str | None = None) -> dict[str, Any] | None:
        """A row's columns without tokens and vectors, and the `artifact_id` that holds it; None if not found.

        Of an artifact, the fields of its manifest. The artifact `near` is looked into first.
        """
        if kind == "artifact":
            manifest = self._manifests.get(identifier) or self._store.find(identifier)
            return None if manifest is None else manifest.model_dump()
        table, column = _TABLES[kind]
        columns = [name for name in table.schema.names if name not in _TOKENS]
        for artifact_ids in ([near] if near in self._manifests else [], None):
            frame = (
                self.scan(kind, columns, artifact_ids).filter(pl.col(column) == identifier).head(1).collect()
            )
            if frame.height:
                return frame.row(0, named=True)
        return None
