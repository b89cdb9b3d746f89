"""Which policies learned from some rows, directly or by inheritance, and what going back would cost."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import polars as pl

from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.lineage.graph import START, ArtifactGraph
from storage.lineage.trained_on import DIRECTLY, INHERITED, record_file
from storage.tables.training import scan_training_records


@dataclass(frozen=True)
class Learner:
    """A checkpoint that learned from the rows. `how` is `DIRECTLY` or `INHERITED`."""

    manifest: Manifest
    how: str
    rows: int | None
    """How many of the rows its own training received; None where it left no record."""


@dataclass(frozen=True)
class BranchPoint:
    """The last checkpoint of a line from before the rows, and what was made of it since with them."""

    before: Manifest | None
    """None where the first of its line learned from the rows."""
    first: tuple[Manifest, ...]
    """The first checkpoints after it that learned from the rows."""
    updates: int
    """Checkpoints after it."""
    generated_tokens: int
    trained_tokens: int
    seconds: float
    """That computing everything after it took, added up."""


def learners(
    store: ArtifactStore,
    graph: ArtifactGraph,
    trajectory_ids: Collection[str],
    holders: Iterable[str],
    behind: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> list[Learner]:
    """Every checkpoint of the graph that learned from trajectories, the nearest to them first.

    Training records say which rows were trained on. A checkpoint without one counts if its training read an
    artifact of `holders`, those that hold the rows.

    Args:
        behind: artifact with a teacher's scores -> the trajectories that it has scored behind texts of those
            rows. A training by these scores learned from the texts, whosever the trajectories are.
    """
    recorded = {
        store.open_file(manifest, name): manifest.artifact_id
        for manifest in graph.manifests.values()
        if manifest.kind == "checkpoint" and (name := record_file(manifest)) is not None
    }
    records = scan_training_records(list(recorded), path_column="policy")
    policies = {str(path): artifact_id for path, artifact_id in recorded.items()}

    def trained_on(ids: Collection[str]) -> dict[str, int]:
        named = pl.col("trajectory_id").is_in(pl.Series(list(ids), dtype=pl.String).implode())
        trained = records.filter(named & pl.col("not_trained").is_null()).group_by("policy").len().collect()
        return {policies[path]: count for path, count in trained.rows()}

    rows: dict[str, int | None] = {**trained_on(trajectory_ids)}
    for scores, scored in behind.items():
        reading = set(graph.policies_trained_on(scores))
        for policy, count in trained_on(set(scored).difference(trajectory_ids)).items():
            if policy in reading:
                rows[policy] = (rows.get(policy) or 0) + count
    for holder in holders:
        for policy in graph.policies_trained_on(holder):
            if record_file(graph.manifests[policy]) is None:
                rows.setdefault(policy, None)
    reached = graph.descendants(dict.fromkeys(sorted(rows), START))
    return [
        Learner(graph.manifests[each], DIRECTLY if each in rows else INHERITED, rows.get(each, 0))
        for each in reached
        if graph.is_checkpoint(each)
    ]


def branch_points(graph: ArtifactGraph, learned: Sequence[Learner]) -> list[BranchPoint]:
    """For each line of checkpoints that learned from some rows, where a line without them would begin."""
    touched = {each.manifest.artifact_id for each in learned}
    first: dict[str | None, list[Manifest]] = {}
    for each in learned:
        parents = [one for one in each.manifest.inputs.values() if graph.is_checkpoint(one)]
        if touched.isdisjoint(parents):
            # A checkpoint may have several, such as its parent and the one that adapters stand on.
            newest = max(parents, key=lambda one: graph.manifests[one].finished_at, default=None)
            first.setdefault(newest, []).append(each.manifest)
    return [_point(graph, before, manifests) for before, manifests in first.items()]


def _point(graph: ArtifactGraph, before: str | None, first: Sequence[Manifest]) -> BranchPoint:
    after = [graph.manifests[each] for each in graph.descendants({one.artifact_id: START for one in first})]
    policies = [each for each in after if each.kind == "checkpoint"]
    rollouts = [each for each in after if each.kind == "rollouts"]
    return BranchPoint(
        before=None if before is None else graph.manifests[before],
        first=tuple(first),
        updates=len(policies),
        generated_tokens=int(sum(each.counters.get("generated_tokens", 0) for each in rollouts)),
        trained_tokens=int(sum(each.counters.get("trained_tokens", 0) for each in policies)),
        seconds=sum((each.finished_at - each.started_at).total_seconds() for each in after),
    )
