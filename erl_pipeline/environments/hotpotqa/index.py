"""The search index over all pages: a LanceDB table with an index of words and, where asked for, vectors."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erl_pipeline.environments.demonstrations import with_defaults
from erl_pipeline.environments.hotpotqa import tasks
from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig, SearchMode
from erl_pipeline.environments.interface import Embedders
from storage.errors import InputError
from storage.texts import StorableTexts

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from storage.memory.entries import Embedder
    from storage.memory.search import Ranked

INDEXED_PASSAGES = 200_000
"""With so many pages or more, the vectors have an index, which may miss a page. Fewer are all compared, in
memory: 300 MB for 200,000 vectors of 384 dimensions."""

_TABLE = "passages"
_ABOUT = "index.json"
_CANDIDATES = 50  # pages of each search that are fused
_PROBES, _REFINE = 200, 4
_EMBEDDED_AT_ONCE = 2_048  # pages; their tokens are in memory together


def passages_of(config: HotpotQAConfig) -> list[tasks.Passage]:
    """All pages that the search can find. Raises `InputError` for bad files."""
    further = [] if config.passage_file is None else tasks.read_passages(Path(config.passage_file))
    return tasks.different_passages(tasks.read_questions(tasks.question_path(config)), further)


def build_index(
    passages: Sequence[tasks.Passage], folder: Path, embedder: Embedder | None, embedded_characters: int
) -> Mapping[str, int]:
    """Write the index of these pages into an empty folder; returns how many pages and vectors it has.

    A folder is built once and kept, since two builds differ: LanceDB names its files as it likes, and draws
    the partitions of an index of many vectors at random. Without such an index the pages alone decide what a
    search finds.

    Args:
        embedder: makes the vectors; None for an index of words alone.
        embedded_characters: how many characters of a page its vector is made of; the title comes first.
    """
    import lancedb
    import numpy as np
    import pyarrow as pa
    from lancedb.index import FTS

    from storage.memory.vector_index import vector_index_config

    storing = StorableTexts()
    titles = [storing.text(passage.title) for passage in passages]
    contents = [storing.text(passage.text) for passage in passages]
    pages = [f"{title}\n{content}" for title, content in zip(titles, contents, strict=True)]
    columns: dict[str, Any] = {
        "number": pa.array(range(len(pages)), pa.int32()),
        "title": titles,
        "page": pages,
    }
    if embedder is not None:
        texts = [page[:embedded_characters] for page in pages]
        parts = [
            embedder.embed(texts[start : start + _EMBEDDED_AT_ONCE])
            for start in range(0, len(texts), _EMBEDDED_AT_ONCE)
        ]
        vectors = np.concatenate(parts)
        columns["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    table = lancedb.connect(folder).create_table(_TABLE, pa.table(columns))
    table.create_index("page", config=FTS())
    if embedder is not None and len(pages) >= INDEXED_PASSAGES:
        table.create_index("vector", config=vector_index_config(len(pages), vectors.shape[1]))
    about = {"embedding_model": None if embedder is None else embedder.embedding_model}
    (folder / _ABOUT).write_text(json.dumps(about) + "\n", encoding="utf-8")
    embedded = 0 if embedder is None else len(pages)
    return {"passages": len(pages), "embedded": embedded, **storing.counters()}


class SearchIndex:
    """A built index, for searches from any thread.

    Args:
        folder: where it was built.
        embedder: makes vectors of queries, with the model that the pages were embedded with. None where
            only words are searched.

    Raises `InputError` where the vectors are of another model.
    """

    def __init__(self, folder: Path, embedder: Embedder | None) -> None:
        import lancedb

        built_with = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))["embedding_model"]
        if embedder is not None and embedder.embedding_model != built_with:
            raise InputError(
                f"the search index in {folder} has vectors of {built_with or 'no model'}, but queries would "
                f"be embedded with {embedder.embedding_model}; build it again with that model"
            )
        self._table = lancedb.connect(folder).open_table(_TABLE)
        self._embedder = embedder
        self._indexed = any(index.columns == ["vector"] for index in self._table.list_indices())

    def search(self, query: str, count: int, mode: SearchMode) -> list[tasks.Passage]:
        """At most `count` pages, the best first. Equal queries find the same pages."""
        from storage.memory.search import fuse

        depth = max(count, _CANDIDATES)
        if mode == "full_text":
            best = self._by_words(query, depth)[:count]
        elif mode == "vector":
            best = self._by_vector(query, depth)[:count]
        else:
            best = fuse([self._by_words(query, depth), self._by_vector(query, depth)], count)
        return self._pages([int(hit.entry_id) for hit in best])

    def by_vector(self, vector: npt.NDArray[np.float32], count: int) -> list[int]:
        """The pages nearest to a vector, as places in the list that the index was built from."""
        return [row["number"] for row in self._nearest(vector, count)]

    def _by_words(self, query: str, count: int) -> Ranked:
        from lancedb.query import MatchQuery

        search = self._table.search(MatchQuery(query, "page"), query_type="fts")
        found: list[dict[str, Any]] = search.select(["number", "_score"]).limit(count).to_list()
        return self._ranked(found, "_score", -1.0)

    def _by_vector(self, query: str, count: int) -> Ranked:
        assert self._embedder is not None
        return self._ranked(self._nearest(self._embedder.embed([query])[0], count), "_distance", 1.0)

    def _nearest(self, vector: npt.NDArray[np.float32], count: int) -> list[dict[str, Any]]:
        if not self._indexed:
            return self._nearest_of_all(vector, count)
        search = self._table.search(vector, vector_column_name="vector").distance_type("cosine")
        search = search.nprobes(_PROBES).refine_factor(_REFINE).select(["number", "_distance"])
        found: list[dict[str, Any]] = search.limit(count).to_list()
        return found

    def _nearest_of_all(self, vector: npt.NDArray[np.float32], count: int) -> list[dict[str, Any]]:
        import numpy as np

        distances = 1.0 - self._vectors @ vector
        last = min(count, len(distances)) - 1
        # All that are as near as the last, so that among equals the first in the files is taken.
        near = np.flatnonzero(distances <= np.partition(distances, last)[last])
        nearest = near[np.argsort(distances[near], kind="stable")][:count]
        return [{"number": int(number), "_distance": float(distances[number])} for number in nearest]

    @cached_property
    def _vectors(self) -> npt.NDArray[np.float32]:
        """The vectors of all pages, [page, dimension]."""
        columns = self._table.search().select(["number", "vector"]).limit(self._table.count_rows()).to_arrow()
        vectors = columns.sort_by("number")["vector"].combine_chunks()
        found: npt.NDArray[np.float32] = vectors.flatten().to_numpy().reshape(len(vectors), -1)
        return found

    def _pages(self, numbers: Sequence[int]) -> list[tasks.Passage]:
        """The pages at these places. Only they are read: candidates with their texts would take most of the
        time of a search."""
        if not numbers:
            return []
        # The table is written once, so a page's number is its place there.
        taken = self._table.take_offsets(list(numbers)).select(["number", "title", "page"]).to_list()
        rows = {row["number"]: row for row in taken}
        return [
            tasks.Passage(rows[number]["title"], rows[number]["page"][len(rows[number]["title"]) + 1 :])
            for number in numbers
        ]

    @staticmethod
    def _ranked(rows: Sequence[Mapping[str, Any]], column: str, sign: float) -> Ranked:
        """Best first; among equals, the page that comes first in the files. A key is the page's number in ten
        digits, so that keys are in the order of the files."""
        from storage.memory.search import Found

        rows = sorted(rows, key=lambda row: (sign * row[column], row["number"]))
        return [Found(f"{row['number']:010d}", row[column]) for row in rows]


_opened: dict[tuple[Path, str | None], SearchIndex] = {}
_opening = threading.Lock()


def open_index(folder: Path, embedder: Embedder | None) -> SearchIndex:
    """The index in a folder, opened once in a process. Raises as `SearchIndex`."""
    key = (folder, None if embedder is None else embedder.model)
    with _opening:
        if key not in _opened:
            _opened[key] = SearchIndex(folder, embedder)
        return _opened[key]


_BUILT_FROM = frozenset(
    {"type", "task_file", "passage_file", "search", "embedding_model", "embedded_characters"}
)


def index_settings(config: HotpotQAConfig) -> HotpotQAConfig:
    """The settings that the index depends on, all others at their defaults."""
    kept = _BUILT_FROM
    if config.search == "full_text":
        kept = kept - {"embedding_model", "embedded_characters"}
    settings = with_defaults(config, HotpotQAConfig.model_fields.keys() - kept)
    # The same index answers a hybrid search and one by vector alone.
    return settings if config.search == "full_text" else settings.model_copy(update={"search": "hybrid"})


def build(config: HotpotQAConfig, folder: Path, embedders: Embedders) -> Mapping[str, int]:
    """Write the index of the configured files into an empty folder."""
    embedder = None if config.search == "full_text" else embedders(config.embedding_model)
    return build_index(passages_of(config), folder, embedder, config.embedded_characters)
