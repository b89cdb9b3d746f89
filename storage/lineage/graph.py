"""The graph of artifacts and the one way to walk it: breadth first, each artifact by its shortest path.

An artifact's manifest names what it was made from, so a walk to its inputs only needs a way to find
manifests (`walk_inputs`). A walk to what was made from it needs all manifests together (`ArtifactGraph`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact, DamagedRecord, InputError
from storage.runs.ledger import LedgerEntry, latest_entries

if TYPE_CHECKING:
    from storage.runs.run import Run, RunStore

Link = tuple[str, str]
"""The relation of a neighbour to an artifact, and the neighbour's id."""


@dataclass(frozen=True)
class Visit:
    """How something was reached: `depth` links from a start, from `via`, to which it is `relation`."""

    depth: int
    relation: str
    via: str


START = Visit(0, "", "")
"""Where a walk begins."""


def walk(
    starts: Mapping[str, Visit], links: Callable[[str], Iterable[Link]], depth: int | None = None
) -> dict[str, Visit]:
    """The starts and all that they are linked to, the nearest first.

    Args:
        starts: where to begin, and how each was reached; the depths of the walk continue from theirs.
        links: the neighbours of an artifact; it is asked once for each that is reached.
        depth: leave out what is further away.
    """
    by_distance: dict[int, dict[str, Visit]] = {}
    for artifact_id, visit in starts.items():
        by_distance.setdefault(visit.depth, {})[artifact_id] = visit
    found: dict[str, Visit] = {}
    while by_distance:
        distance = min(by_distance)
        level = by_distance.pop(distance)
        if depth is not None and distance > depth:
            break
        for artifact_id, visit in level.items():
            if artifact_id in found:
                continue
            found[artifact_id] = visit
            following = by_distance.setdefault(distance + 1, {})
            for relation, neighbour in links(artifact_id):
                if neighbour not in found:
                    following.setdefault(neighbour, Visit(distance + 1, relation, artifact_id))
    return found


@dataclass(frozen=True)
class Ancestry:
    """Artifacts and all that they were made from, the nearest first."""

    manifests: dict[str, Manifest]
    missing: dict[str, Visit]
    """Ids whose manifests were not found, and how each was reached."""


def walk_inputs(
    find: Callable[[str], Manifest | None],
    starts: Iterable[str] | Mapping[str, Visit],
    through: Collection[str] | None = None,
) -> Ancestry:
    """Follow artifacts to all that they were made from; each manifest is asked for once."""
    manifests: dict[str, Manifest] = {}

    def links(artifact_id: str) -> Iterable[Link]:
        manifest = find(artifact_id)
        if manifest is None:
            return ()
        manifests[artifact_id] = manifest
        return _inputs(manifest, through)

    begun = starts if isinstance(starts, Mapping) else dict.fromkeys(starts, START)
    visits = walk(begun, links)
    return Ancestry(manifests, {key: visit for key, visit in visits.items() if key not in manifests})


class ArtifactGraph:
    """A set of artifacts as a graph. Walks end at an input whose manifest is not in the set."""

    def __init__(self, manifests: Iterable[Manifest]) -> None:
        self.manifests = {manifest.artifact_id: manifest for manifest in manifests}
        self._made_from: dict[str, list[Link]] = {}
        for manifest in self.manifests.values():
            for name, input_id in manifest.inputs.items():
                self._made_from.setdefault(input_id, []).append(
                    (f"made with it as {name}", manifest.artifact_id)
                )

    def ancestors(self, starts: Mapping[str, Visit], depth: int | None = None) -> dict[str, Visit]:
        """The starts and all that they were made from, the nearest first; see `walk`."""
        return walk(starts, self._links_to_inputs, depth)

    def descendants(self, starts: Mapping[str, Visit], depth: int | None = None) -> dict[str, Visit]:
        """The starts and all that was made from them, the nearest first; see `walk`."""
        return walk(starts, lambda artifact_id: self._made_from.get(artifact_id, ()), depth)

    def policies_trained_on(self, artifact_id: str) -> list[str]:
        """Policies whose training read this artifact's files, directly or through lists of artifacts.

        A path through another policy, or through an artifact with rows of its own (a memory version, a
        dataset), does not count: the rows of those name what they took over.
        """
        return self.nearest_checkpoints([artifact_id], through=lambda manifest: not holds_rows(manifest))

    def nearest_checkpoints(
        self, starts: Iterable[str], through: Callable[[Manifest], bool] = lambda _: True
    ) -> list[str]:
        """Checkpoints that were made from the starts with no other checkpoint in between, the nearest first.

        Args:
            through: whether a path may pass through this artifact, which is not a checkpoint.
        """
        begun = dict.fromkeys(starts, START)

        def links(artifact_id: str) -> Iterable[Link]:
            if artifact_id not in begun and self.is_checkpoint(artifact_id):
                return ()
            made = self._made_from.get(artifact_id, ())
            return [link for link in made if self.is_checkpoint(link[1]) or through(self.manifests[link[1]])]

        reached = walk(begun, links)
        return [one for one in reached if one not in begun and self.is_checkpoint(one)]

    def is_checkpoint(self, artifact_id: str) -> bool:
        """Whether this artifact holds a policy; False for one that is not in the graph."""
        manifest = self.manifests.get(artifact_id)
        return manifest is not None and manifest.kind == "checkpoint"

    def _links_to_inputs(self, artifact_id: str) -> Iterable[Link]:
        manifest = self.manifests.get(artifact_id)
        return () if manifest is None else _inputs(manifest, None)


def holds_rows(manifest: Manifest) -> bool:
    """Whether an artifact has a table of trajectories, memory entries or SFT rows, even an empty one."""
    return any(entry.table is not None for entry in manifest.files)


def _inputs(manifest: Manifest, through: Collection[str] | None) -> list[Link]:
    return [
        (f"its input {name}", input_id)
        for name, input_id in manifest.inputs.items()
        if through is None or name in through
    ]


def reachable(store: ArtifactStore, artifact_ids: Iterable[str]) -> list[Manifest]:
    """Manifests of artifacts and of everything they were made from, each once, the nearest first.

    Raises InputError for one that is not in the store.
    """
    ancestry = walk_inputs(store.find, artifact_ids)
    for artifact_id in ancestry.missing:
        raise InputError(f"no artifact {artifact_id} in store {store.uri}.")
    return list(ancestry.manifests.values())


def manifests_of(store: ArtifactStore, run: Run | None) -> list[Manifest]:
    """The artifacts of a run and all that they were made from; all of the store for None."""
    return reachable(store, [entry.artifact_id for entry in run.stages()]) if run else list(store.list())


def current_entries(store: ArtifactStore, recorded: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """The latest line of each place in a ledger, without artifacts that were made from something that the run
    has since made otherwise: after an edit of the code they are no part of the run any more."""
    latest = latest_entries(recorded)
    named = {entry.artifact_id for entry in latest}
    # Nothing is made from an evaluation. One on request has the id of its tasks as its key, and stays beside
    # those on other tasks.
    kept = named | {each.key for each in latest if each.kind == "evaluation"}
    others = [each for each in recorded if each.artifact_id not in kept and each.kind != "evaluation"]
    if not others:
        return latest

    stages = {each.artifact_id: each.stage for each in recorded}

    def find(artifact_id: str) -> Manifest | None:
        try:
            return store.find(artifact_id, stages.get(artifact_id))
        except DamagedArtifact:  # Whoever reads it says so.
            return None

    made = walk_inputs(find, named).manifests
    replaced = {each.artifact_id: START for each in others}
    outdated = ArtifactGraph(made.values()).descendants(replaced)
    return [entry for entry in latest if entry.artifact_id not in outdated]


def runs_by_artifact(runs: RunStore) -> dict[str, list[str]]:
    """For each artifact, the sorted names of the runs whose ledgers name it; several runs may share one.
    Runs with damaged records are left out."""
    found: dict[str, dict[str, None]] = {}
    for name in runs.list():
        with suppress(DamagedRecord):
            for entry in runs.open(name).stages():
                found.setdefault(entry.artifact_id, {})[name] = None
    return {artifact_id: list(names) for artifact_id, names in found.items()}
