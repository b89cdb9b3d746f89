"""The graph of a store's artifacts and the places of its rows, kept until the store changes."""

from __future__ import annotations

import threading
from operator import is_

from storage.artifacts.watched import WatchedStore
from storage.lineage.graph import ArtifactGraph
from storage.lineage.places import RowPlaces


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
