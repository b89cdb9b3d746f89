"""Finding rows by id in the Parquet files of many artifacts."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import polars as pl

from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.memory.entries import MEMORY
from storage.tables.parquet import TableFormat, scan_files
from storage.tables.scored import with_measured
from storage.tables.training import SFT
from storage.tables.trajectories import TRAJECTORIES
from storage.texts import listed

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
)


class LineageRows:
    """The rows of a set of artifacts, read when they are needed; each artifact is verified first."""

    def __init__(self, store: ArtifactStore, manifests: Sequence[Manifest]) -> None:
        self._store = store
        self._manifests = {manifest.artifact_id: manifest for manifest in manifests}
        self._whole: dict[RowKind, pl.LazyFrame] = {}
        self._in_memory: dict[RowKind, pl.DataFrame] = {}

    def scan(
        self, kind: RowKind, columns: Sequence[str], artifact_ids: Sequence[str] | None = None
    ) -> pl.LazyFrame:
        """Columns of all rows of a kind, with the `artifact_id` of the artifact that holds each row."""
        if artifact_ids is not None:
            return self._scan(kind, artifact_ids).select(*columns, "artifact_id")
        if kind not in self._whole:
            self._whole[kind] = self._scan(kind, list(self._manifests))
        return self._whole[kind].select(*columns, "artifact_id")

    def read(self, kind: RowKind, columns: Sequence[str]) -> pl.DataFrame:
        """Like `scan`, in memory: columns stay there, and a column that was read before is not read again.

        Opening a file costs more than reading a column of its rows, so ask for all needed columns together.
        """
        if kind not in self._in_memory:
            self._in_memory[kind] = pl.DataFrame({"artifact_id": self._holder_of_each_row(kind)})
        held = self._in_memory[kind]
        absent = [name for name in columns if name not in held.columns]
        if absent:
            found = self.scan(kind, absent).drop("artifact_id").collect()
            # The rows have the order of the artifacts, whichever columns are read, so columns can be stacked.
            # Without `rechunk` a column has as many pieces as files, and each user would copy it.
            held = held.hstack(found.rechunk())
            self._in_memory[kind] = held
        return held.select(*columns, "artifact_id")

    def _scan(self, kind: RowKind, artifact_ids: Sequence[str]) -> pl.LazyFrame:
        table, _ = _TABLES[kind]
        holders = {
            str(path): artifact_id
            for artifact_id in artifact_ids
            for path, _ in self._files(artifact_id, table)
        }
        frame = scan_files([Path(path) for path in holders], table, path_column="artifact_id")
        frame = frame.with_columns(pl.col("artifact_id").replace(holders))
        return with_measured(frame) if kind == "trajectory" else frame

    def _holder_of_each_row(self, kind: RowKind) -> pl.Series:
        table, _ = _TABLES[kind]
        files = [
            (artifact_id, rows)
            for artifact_id in self._manifests
            for _, rows in self._files(artifact_id, table)
        ]
        places = np.repeat(np.arange(len(files)), np.array([rows for _, rows in files], dtype=np.int64))
        return pl.Series([artifact_id for artifact_id, _ in files], dtype=pl.String).gather(places)

    def of_ids(self, kind: RowKind, ids: Sequence[str], columns: Sequence[str]) -> pl.DataFrame:
        """Rows with these ids: `id`, the columns, and `artifact_id`, once for each artifact that holds it."""
        _, id_column = _TABLES[kind]
        wanted = pl.col(id_column).is_in(pl.Series(ids, dtype=pl.String).implode())
        return self.read(kind, [id_column, *columns]).filter(wanted).rename({id_column: "id"})

    def _files(self, artifact_id: str, table: TableFormat) -> list[tuple[Path, int]]:
        """An artifact's files of one format, and how many rows each has."""
        entries = self._manifests[artifact_id].tables(table.name)
        if not entries:
            return []
        artifact = self._store.open_found(self._manifests[artifact_id])
        return [(artifact.rows_path(entry.path), entry.rows or 0) for entry in entries]

    def matches(
        self, prefix: str, kinds: Sequence[Kind] = KINDS, within: Collection[str] | None = None
    ) -> Iterator[tuple[Kind, str]]:
        """Everything of these kinds whose id begins with `prefix`, in the artifacts `within`."""
        for artifact_id in self._manifests if "artifact" in kinds else ():
            if within is not None and artifact_id not in within:
                continue
            if artifact_id.startswith(prefix):
                yield "artifact", artifact_id
        for kind, (_, column) in _TABLES.items():
            if kind not in kinds:
                continue
            found = self.read(kind, [column]).filter(pl.col(column).str.starts_with(prefix))
            if within is not None:
                found = found.filter(pl.col("artifact_id").is_in(list(within)))
            for row_id in found[column].unique().sort():
                yield kind, row_id

    def facts(self, kind: Kind, identifier: str) -> dict[str, Any]:
        """What is told of an artifact or a row: fields of its manifest, or columns, and its `messages` if it
        has any that were not pruned."""
        if kind == "artifact":
            row = self._manifests[identifier].model_dump()
        else:
            table, column = _TABLES[kind]
            held = self.read(kind, [column]).filter(pl.col(column) == identifier)["artifact_id"].head(1)
            columns = [name for name in table.schema.names if name not in _TOKENS]
            of_id = self.scan(kind, columns, held.to_list()).filter(pl.col(column) == identifier)
            row = of_id.head(1).collect().row(0, named=True)
        facts = {name: row[name] for name in _FACTS[kind] if row[name] is not None}
        messages = _messages(kind, row)
        return facts if messages is None else {**facts, "messages": messages}


def identify(
    rows: LineageRows,
    identifier: str,
    kinds: Sequence[Kind] = KINDS,
    within: Collection[str] | None = None,
) -> tuple[Kind, str]:
    """The kind and id of what has this id, or the one id that begins with it; `within` limits the artifacts.

    Raises InputError when nothing of these kinds, or more than one thing, has it.
    """
    if not identifier:
        raise InputError("Give an id, or the beginning of one.")
    matches = list(rows.matches(identifier, kinds, within))
    exact = [match for match in matches if match[1] == identifier]
    if len(exact or matches) == 1:
        return (exact or matches)[0]
    if not matches:
        names = listed([_NAMES[kind] for kind in kinds], "or")
        raise InputError(f"no {names} has an id {identifier!r}.")
    some = ", ".join(f"{found} ({kind})" for kind, found in matches[:5])
    raise InputError(f"{len(matches)} ids begin with {identifier!r}: {some}. Give more of the id.")


_NAMES: dict[Kind, str] = {
    "artifact": "artifact",
    "trajectory": "trajectory",
    "sft_row": "SFT row",
    "memory_entry": "memory entry",
}


_FACTS: dict[Kind, tuple[str, ...]] = {
    "artifact": ("stage", "run", "iteration", "code_version", "seed", "counters", "metrics"),
    "sft_row": (
        "task_id",
        "task_type",
        "iteration",
        "weight",
        "source_system",
        "source_trace_id",
        "source_span_ids",
        "source_model",
        "artifact_id",
    ),
    "trajectory": (
        "episode_id",
        "role",
        "task_id",
        "task_type",
        "iteration",
        "reward",
        "success",
        "finish_reason",
        "feedback",
        "text",
        "memory_version",
        "artifact_id",
    ),
    "memory_entry": (
        "text",
        "task_type",
        "feedback",
        "iteration",
        "artifact_id",
    ),
}


def _messages(kind: Kind, row: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The messages of a row; None if it holds none, or if they were pruned."""
    if kind == "sft_row":
        return [*row["prompt"], *row["completion"]]
    if kind == "trajectory" and row["messages"] is not None:
        found: list[dict[str, Any]] = json.loads(row["messages"])
        return found
    return None
