"""Searches of memories that write nothing to the store: the tables are built in a temporary folder."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

from command_line.memory.run import RunMemory
from erl_pipeline.policies.embedding import SentenceEmbedder
from storage.memory.search import SearchMode
from storage.memory.view import MemoryHit, MemoryVersions, MemoryView


class MemorySearches:
    """The tables that were searched so far. Several threads may use it; they search one at a time.

    The first search of a run builds its table from the committed memory versions; the first by meaning also
    loads the embedding model.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="erl-pipeline-ui-")
        self._embedders: dict[str, SentenceEmbedder] = {}
        self._tables: dict[str, MemoryVersions] = {}
        self._views: dict[str, tuple[str, MemoryView]] = {}
        """For each run, the version that was searched last, and its view."""
        self._turn = threading.Lock()

    def search(
        self, memory: RunMemory, text: str, top_k: int, task_type: str | None, mode: SearchMode
    ) -> list[MemoryHit]:
        """The best entries of a memory version."""
        with self._turn:
            name, model = memory.run.name, memory.embedding_model
            if model not in self._embedders:
                self._embedders[model] = SentenceEmbedder(model, batch_tokens=1)
            if name not in self._tables:
                uri = str(Path(self._folder.name))
                self._tables[name] = MemoryVersions(uri, name, memory.store, self._embedders[model])
            if name not in self._views or self._views[name][0] != memory.version:
                self._views[name] = memory.version, self._tables[name].at(memory.version)
            _, view = self._views[name]
            return view.search([text], top_k, task_type=task_type, mode=mode, exact=False)[0]
