"""Searches of memories that write nothing to the store: each table is a copy in a temporary folder."""

from __future__ import annotations

import tempfile
import threading

from command_line.memory.run import RunMemory
from erl_pipeline.policies.embedding import SentenceEmbedder
from storage.memory.index import copy_index, index_folder
from storage.memory.search import SearchMode
from storage.memory.view import MemoryHit, MemoryView, ReflectionMemory

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
            return view.search([text], top_k, task_type=task_type, mode=mode, exact=False)[0]

    def _copy(self, memory: RunMemory) -> ReflectionMemory:
        name, model, uri = memory.run.name, memory.embedding_model, self._folder.name
        if model not in self._embedders:
            self._embedders[model] = SentenceEmbedder(model, batch_tokens=1)
        copy_index(index_folder(memory.store.uri, name), index_folder(uri, name))
        return ReflectionMemory(uri, name, memory.store, self._embedders[model], _CACHE_BYTES)
