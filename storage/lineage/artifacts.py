"""Artifact to artifact: what was made from what, read from the manifests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.runs.run import RunStore


@dataclass(frozen=True)
class Step:
    """How something was reached: `depth` steps from the start, from `via`, to which it is `relation`."""

    depth: int
    relation: str
    via: str


HERE = Step(0, "", "")
"""Where a walk begins."""


class ArtifactGraph:
    """A set of artifacts as a graph. An input whose manifest is not in the set is an end of it.

    A *policy* is an artifact that names itself as its policy version: a checkpoint that training gave.
    """

    def __init__(self, manifests: Iterable[Manifest]) -> None:
        self.manifests = {manifest.artifact_id: manifest for manifest in manifests}
        self._made_from: dict[str, list[tuple[str, str]]] = {}
        for manifest in self.manifests.values():
            for name, input_id in manifest.inputs.items():
                self._made_from.setdefault(input_id, []).append(
                    (f"made with it as {name}", manifest.artifact_id)
                )

    def ancestors(self, starts: Mapping[str, Step], depth: int | None = None) -> dict[str, Step]:
        """The starts and all that they were made from, the nearest first.

        Args:
            starts: artifacts, and how each was reached; steps are counted on from there.
            depth: leave out what is more steps away.
        """
        return _walk(starts, depth, self._inputs)

    def descendants(self, starts: Mapping[str, Step], depth: int | None = None) -> dict[str, Step]:
        """The starts and all that was made from them; otherwise like `ancestors`."""
        return _walk(starts, depth, lambda artifact_id: self._made_from.get(artifact_id, ()))

    def policies_trained_on(self, artifact_id: str) -> list[str]:
        """Policies whose training read this artifact's files, itself or through lists of artifacts.

        A way that passes another policy, or an artifact with rows of its own (a memory version, a
        dataset), does not count: what those took over stands in their rows.
        """
        found: dict[str, None] = {}
        waiting, seen = deque([artifact_id]), {artifact_id}
        while waiting:
            for _, made in self._made_from.get(waiting.popleft(), ()):
                if self.is_policy(made):
                    found[made] = None
                elif made not in seen and not holds_rows(self.manifests[made]):
                    seen.add(made)
                    waiting.append(made)
        return list(found)

    def is_policy(self, artifact_id: str) -> bool:
        """Whether training gave this artifact."""
        manifest = self.manifests.get(artifact_id)
        return manifest is not None and manifest.policy_version == artifact_id

    def _inputs(self, artifact_id: str) -> Iterable[tuple[str, str]]:
        manifest = self.manifests.get(artifact_id)
        inputs: Mapping[str, str] = manifest.inputs if manifest is not None else {}
        return [(f"its input {name}", input_id) for name, input_id in inputs.items()]


def holds_rows(manifest: Manifest) -> bool:
    """Whether an artifact has a table of trajectories, memory entries or SFT rows, even an empty one."""
    return any(entry.table is not None for entry in manifest.files)


def artifact_ancestors(store: ArtifactStore, artifact_id: str) -> list[Manifest]:
    """Everything that an artifact was made from, the nearest first. Raises InputError for an unknown id."""
    return reachable(store, [artifact_id])[1:]


def artifact_descendants(store: ArtifactStore, artifact_id: str) -> list[Manifest]:
    """Everything in the store that was made from an artifact, the nearest first."""
    graph = ArtifactGraph(store.list())
    found = graph.descendants({artifact_id: HERE})
    return [graph.manifests[descendant] for descendant in found if descendant != artifact_id]


def reachable(store: ArtifactStore, artifact_ids: Iterable[str]) -> list[Manifest]:
    """Manifests of artifacts and of everything they were made from, each once, the nearest first.

    Raises InputError for one that is not in the store.
    """
    found: dict[str, Manifest] = {}
    waiting = deque(dict.fromkeys(artifact_ids))
    while waiting:
        artifact_id = waiting.popleft()
        if artifact_id in found:
            continue
        manifest = store.find(artifact_id)
        if manifest is None:
            raise InputError(f"no artifact {artifact_id} in store {store.uri}.")
        found[artifact_id] = manifest
        waiting.extend(manifest.inputs.values())
    return list(found.values())


def runs_by_artifact(runs: RunStore) -> dict[str, list[str]]:
    """For each artifact the names of the runs whose ledgers name it, sorted: several share what both use."""
    found: dict[str, dict[str, None]] = {}
    for name in runs.list():
        for entry in runs.open(name).stages():
            found.setdefault(entry.artifact_id, {})[name] = None
    return {artifact_id: list(names) for artifact_id, names in found.items()}


def _walk(
    starts: Mapping[str, Step], depth: int | None, neighbours: Callable[[str], Iterable[tuple[str, str]]]
) -> dict[str, Step]:
    """Breadth first, each by its shortest way; `neighbours` gives (relation, id)."""
    by_distance: dict[int, dict[str, Step]] = {}
    for artifact_id, step in starts.items():
        by_distance.setdefault(step.depth, {})[artifact_id] = step
    found: dict[str, Step] = {}
    while by_distance:
        distance = min(by_distance)
        level = by_distance.pop(distance)
        if depth is not None and distance > depth:
            break
        for artifact_id, step in level.items():
            if artifact_id in found:
                continue
            found[artifact_id] = step
            following = by_distance.setdefault(distance + 1, {})
            for relation, neighbour in neighbours(artifact_id):
                if neighbour not in found:
                    following.setdefault(neighbour, Step(distance + 1, relation, artifact_id))
    return found
