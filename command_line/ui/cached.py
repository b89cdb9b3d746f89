"""What is kept between requests: facts about files, the graph of artifacts, values made from an artifact,
searches.

A file is read once, and again when the store gives another object for it. A `WatchedStore` does so when the
file has changed in size or time, or was pruned."""

import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from command_line.memory.run import RunMemory
from command_line.ui.filters import Filter
from erl_pipeline.policies.embedding import SentenceEmbedder
from storage.artifacts.watched import WatchedStore
from storage.lineage.graph import ArtifactGraph
from storage.lineage.row_graph import RowPlaces
from storage.memory.index import copy_index, index_folder
from storage.memory.search import MemoryFilter, SearchMode
from storage.memory.view import MemoryHit, MemoryView, ReflectionMemory
from storage.tables.parquet import TableFormat, scan_files
from storage.tables.scored import with_measured
from storage.tables.trajectories import TRAJECTORIES

Hashes = npt.NDArray[np.uint32]
Files = Mapping[Path, object]
"""Files, each with the object that the store gave for it; facts about a file hold while that is the same."""
_FILE = "file"
_MOST_FILTERS = 64
_NOT_READ = (None, 0)


class KnownFiles:
    """The files of one table. Several threads may use it."""

    def __init__(self, table: TableFormat) -> None:
        self._table = table
        self._ids: dict[str, dict[Path, tuple[object, Hashes]]] = {}
        """Column -> file -> hashes of its ids, sorted."""
        self._counts: OrderedDict[tuple[Filter, ...], dict[Path, tuple[object, int]]] = OrderedDict()
        self._turn = threading.Lock()

    def holding(self, files: Files, column: str, ids: Sequence[str]) -> list[Path]:
        """The files that have a row with one of these ids. Ids are compared by hashes, so by chance there may
        be one file too many."""
        with self._turn:
            held = self._ids.setdefault(column, {})
            new = _not_read(files, held)
            if new:
                rows = self._rows(new, [pl.col(column).hash().alias("id")])
                held.update({path: (new[path], np.sort(_short_hash(rows[path]["id"]))) for path in new})
            wanted = _short_hash(pl.Series(ids, dtype=pl.String).hash())
            return [path for path in files if _holds_any(held[path][1], wanted)]

    def counts(self, files: Files, filters: Sequence[Filter]) -> list[int]:
        """How many rows of each file meet the filters."""
        with self._turn:
            known = self._counts.setdefault(tuple(filters), {})
            self._counts.move_to_end(tuple(filters))
            while len(self._counts) > _MOST_FILTERS:
                self._counts.popitem(last=False)
            new = _not_read(files, known)
            if new:
                met = pl.lit(True).and_(*(each.condition() for each in filters))
                rows = self._rows(new, [met.alias("met")])
                known.update({path: (file, int(rows[path]["met"].sum())) for path, file in new.items()})
            return [known[path][1] for path in files]

    def _rows(self, files: Files, columns: Sequence[pl.Expr]) -> dict[Path, pl.DataFrame]:
        """Columns of the rows of each file."""
        scanned = scan_files(list(files), self._table, _FILE)
        scanned = with_measured(scanned) if self._table is TRAJECTORIES else scanned
        rows = scanned.select(*columns, _FILE).collect()
        found = {
            Path(str(file)): part.drop(_FILE) for (file,), part in rows.group_by(_FILE, maintain_order=True)
        }
        return {path: found.get(path, rows.clear().drop(_FILE)) for path in files}


def _not_read(files: Files, known: Mapping[Path, tuple[object, Any]]) -> dict[Path, object]:
    """Those of the files that are new, or have changed since they were read."""
    return {path: file for path, file in files.items() if known.get(path, _NOT_READ)[0] is not file}


def _short_hash(hashes: pl.Series) -> Hashes:
    """Half of each hash: enough for a million ids, with half of the memory."""
    return (hashes.to_numpy() >> np.uint64(32)).astype(np.uint32)


def _holds_any(hashes: Hashes, wanted: Hashes) -> bool:
    """Whether one of the wanted hashes is among these, which are sorted."""
    first, end = hashes.searchsorted(wanted), hashes.searchsorted(wanted, side="right")
    return bool((first < end).any())


class KnownLineage:
    """The data for questions about lineage. Several threads may use it; each call checks the store."""

    def __init__(self, artifacts: WatchedStore) -> None:
        self._artifacts = artifacts
        self._graph = ArtifactGraph(())
        self._places, self._looked_at = RowPlaces(artifacts), self._graph
        self._turn = threading.Lock()

    def graph(self) -> ArtifactGraph:
        """All artifacts as they are now."""
        manifests = list(self._artifacts.list())
        with self._turn:
            known = self._graph.manifests.values()
            # A manifest that did not change is the same object.
            if len(known) != len(manifests) or not all(map(is_, known, manifests)):
                self._graph = ArtifactGraph(manifests)
            return self._graph

    def places(self, graph: ArtifactGraph) -> RowPlaces:
        """Where the rows of these artifacts lie."""
        with self._turn:
            if graph is not self._looked_at:
                self._places.look(graph.manifests.values())
                self._looked_at = graph
            return self._places


MOST_ARTIFACTS = 3
"""Most artifacts whose values are kept: for a memory of a million entries they take about 150 MB each."""

T = TypeVar("T")


@dataclass
class _Place:
    making: threading.Lock = field(default_factory=threading.Lock)
    made: list[Any] = field(default_factory=list)


class Sealed:
    """Values made from artifacts. Several threads may ask for one at the same time; it is made once."""

    def __init__(self, most: int = MOST_ARTIFACTS) -> None:
        self._most = most
        self._artifacts: OrderedDict[str, dict[str, _Place]] = OrderedDict()
        self._turn = threading.Lock()

    def get(self, artifact_id: str, what: str, make: Callable[[], T]) -> T:
        """The value `what` of an artifact, made by `make` if it is not kept yet. If `make` raises, nothing is
        kept."""
        with self._turn:
            place = self._artifacts.setdefault(artifact_id, {}).setdefault(what, _Place())
            self._artifacts.move_to_end(artifact_id)
            while len(self._artifacts) > self._most:
                self._artifacts.popitem(last=False)
        with place.making:
            if not place.made:
                place.made.append(make())
            value: T = place.made[0]
            return value


_CACHE_BYTES = 64 * 2**20
"""Of a table. A person's searches follow each other slowly, and the operating system keeps the files."""


class MemorySearches:
    """The tables that were searched so far. Several threads may use it; they search one at a time.

    The first search of a run copies its table and brings the copy up to the version that is asked for, or
    builds it from the committed memory versions; the first by meaning also loads the embedding model.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="erl-pipeline-ui-")
        self._embedders: dict[str, SentenceEmbedder] = {}
        self._tables: dict[str, ReflectionMemory] = {}
        self._views: dict[str, tuple[str, MemoryView]] = {}
        """For each run, the version that was searched last, and its view."""
        self._turn = threading.Lock()

    def search(
        self, memory: RunMemory, text: str, top_k: int, task_type: str | None, mode: SearchMode
    ) -> list[MemoryHit]:
        """The best entries of a memory version."""
        with self._turn:
            name = memory.run.name
            if name not in self._tables:
                self._tables[name] = self._copy(memory)
            if name not in self._views or self._views[name][0] != memory.version:
                self._views[name] = memory.version, self._tables[name].at(memory.version)
            _, view = self._views[name]
            return view.search([text], top_k, MemoryFilter(task_type), mode=mode, exact=False)[0]

    def _copy(self, memory: RunMemory) -> ReflectionMemory:
        name, model, uri = memory.run.name, memory.embedding_model, self._folder.name
        if model not in self._embedders:
            self._embedders[model] = SentenceEmbedder(model, batch_tokens=1)
        copy_index(index_folder(memory.store.uri, name), index_folder(uri, name))
        return ReflectionMemory(uri, name, memory.store, self._embedders[model], _CACHE_BYTES)
