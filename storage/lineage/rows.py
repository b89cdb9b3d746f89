"""Finding rows by id in the Parquet files of many artifacts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import polars as pl

from storage.artifacts import ArtifactStore
from storage.errors import InputError
from storage.manifest import Manifest
from storage.memory_entries import MEMORY
from storage.parquet import TableFormat, scan_files
from storage.sft import SFT
from storage.trajectories import TRAJECTORIES

Kind = Literal["artifact", "trajectory", "sft_row", "memory_entry"]
RowKind = Literal["sft_row", "trajectory", "memory_entry"]
KINDS: tuple[Kind, ...] = get_args(Kind)

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
        self._whole: dict[RowKind, pl.LazyFrame] = {}

    def scan(
        self, kind: RowKind, columns: Sequence[str], artifact_ids: Sequence[str] | None = None
    ) -> pl.LazyFrame:
        """Columns of all rows of a kind, with the `artifact_id` that holds each."""
        if artifact_ids is not None:
            return self._scan(kind, artifact_ids).select(*columns, "artifact_id")
        if kind not in self._whole:
            self._whole[kind] = self._scan(kind, list(self._manifests))
        return self._whole[kind].select(*columns, "artifact_id")

    def _scan(self, kind: RowKind, artifact_ids: Sequence[str]) -> pl.LazyFrame:
        table, _ = _TABLES[kind]
        holders = {
            str(path): artifact_id for artifact_id in artifact_ids for path in self._files(artifact_id, table)
        }
        frame = scan_files([Path(path) for path in holders], table, path_column="artifact_id")
        return frame.with_columns(pl.col("artifact_id").replace(holders))

    def of_ids(self, kind: RowKind, ids: Sequence[str], columns: Sequence[str]) -> pl.DataFrame:
        """Rows with these ids: `id`, the columns, and `artifact_id`, once for each artifact that holds it."""
        _, id_column = _TABLES[kind]
        frame = self.scan(kind, [id_column, *columns]).filter(pl.col(id_column).is_in(ids)).collect()
        return frame.rename({id_column: "id"})

    def _files(self, artifact_id: str, table: TableFormat) -> list[Path]:
        """An artifact's files of one format."""
        names = [entry.path for entry in self._manifests[artifact_id].files if entry.table == table.name]
        return [self._store.open(artifact_id).rows_path(name) for name in names]

    def matches(
        self, prefix: str, kinds: Sequence[Kind] = KINDS, within: Collection[str] | None = None
    ) -> Iterator[tuple[Kind, str]]:
        """Everything of these kinds whose id begins with `prefix`; only in and of the artifacts `within`."""
        for artifact_id in self._manifests if "artifact" in kinds else ():
            if within is not None and artifact_id not in within:
                continue
            if artifact_id.startswith(prefix):
                yield "artifact", artifact_id
        for kind, (_, column) in _TABLES.items():
            if kind not in kinds:
                continue
            ids = self.scan(kind, [column])
            if within is not None:
                ids = ids.filter(pl.col("artifact_id").is_in(list(within)))
            for row_id in (
                ids.filter(pl.col(column).str.starts_with(prefix))
                .select(column)
                .unique()
                .collect()[column]
                .sort()
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


def identify(
    rows: LineageRows,
    identifier: str,
    kinds: Sequence[Kind] = KINDS,
    within: Collection[str] | None = None,
) -> tuple[Kind, str]:
    """What has this id, or the one id that begins with it; `within` names the artifacts to look among.

    Raises InputError when nothing of these kinds, or more than one thing, has it.
    """
    if not identifier:
        raise InputError("Give an id, or the beginning of one.")
    matches = list(rows.matches(identifier, kinds, within))
    exact = [match for match in matches if match[1] == identifier]
    if len(exact or matches) == 1:
        return (exact or matches)[0]
    if not matches:
        names = [_NAMES[kind] for kind in kinds]
        listed = " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
        raise InputError(f"no {listed} has an id {identifier!r}.")
    some = ", ".join(f"{found} ({kind})" for kind, found in matches[:5])
    raise InputError(f"{len(matches)} ids begin with {identifier!r}: {some}. Give more of the id.")


_NAMES: dict[Kind, str] = {
    "artifact": "artifact",
    "trajectory": "trajectory",
    "sft_row": "SFT row",
    "memory_entry": "memory entry",
}
