"""Everything that something came from or reached: rows through columns, then artifacts through manifests."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.lineage.graph import START, ArtifactGraph, Visit, manifests_of
from storage.lineage.row_graph import LINK_COLUMNS, RowLinks, RowPlaces, RowStep
from storage.lineage.rows import Kind, LineageRows, RowKind, identify
from storage.runs.run import Run

Direction = Literal["upstream", "downstream"]

_ROW_FACTS: dict[RowKind, tuple[str, ...]] = {
    "trajectory": ("role", "task_id", "iteration", "reward"),
    "memory_entry": ("task_type", "iteration"),
    "sft_row": ("task_id", "iteration"),
}


@dataclass(frozen=True)
class Reached:
    """Something that was reached, `depth` steps from the start; it is `relation` to the thing `via`."""

    kind: Kind
    id: str
    depth: int
    relation: str
    via: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Fields that describe it: of an artifact's manifest (`_ARTIFACT_FACTS`), or of a row (`_ROW_FACTS`)."""


@dataclass(frozen=True)
class Reach:
    """What one thing came from (`upstream`) or reached (`downstream`), the nearest first."""

    kind: Kind
    id: str
    direction: Direction
    things: tuple[Reached, ...]
    trained: tuple[str, ...] = ()
    """Downstream: policies that trained on it, or on a row that came from it; other policies in `things` are
    descendants of these."""


def upstream(store: ArtifactStore, run: Run | None, identifier: str, depth: int | None = None) -> Reach:
    """All that an artifact, trajectory, SFT row or memory entry came from.

    A row came from the rows that its columns name and from the artifacts that hold these rows, and so from
    the policy, tasks and memory that are the artifacts' inputs.

    Args:
        run: look for the id among this run's artifacts only; None for the whole store.
        identifier: an id, or the beginning of one when there is only one such.
        depth: the most steps to go; None for all.

    Raises InputError when nothing, or more than one thing, has this id.
    """
    manifests = manifests_of(store, run)
    return _upstream_among(_read(store, manifests), ArtifactGraph(manifests), identifier, depth)


def near(
    store: ArtifactStore,
    graph: ArtifactGraph,
    places: Callable[[], RowPlaces],
    identifier: str,
    direction: Direction,
    depth: int,
) -> Reach:
    """Like `upstream` or `downstream`, in the store that `graph` and `places` cover; reads only artifacts
    near the row. `places` are asked for unless it is the whole id of an artifact."""
    if identifier in graph.manifests:
        return _of_artifact(graph, identifier, direction, depth)
    around = set(places().around(identifier, direction, depth))
    # In the order of the whole store, so that the answer has that order too.
    rows = _read(store, [each for key, each in graph.manifests.items() if key in around])
    if not any(rows.of_ids(kind, [identifier], []).height for kind in _ROW_FACTS):
        # Rows of other programs have ids of any length, with which an artifact's may begin.
        matching = [artifact_id for artifact_id in graph.manifests if artifact_id.startswith(identifier)]
        if len(matching) > 1:
            raise InputError(f"{len(matching)} artifacts begin with {identifier!r}. Give more of the id.")
        if matching:
            return _of_artifact(graph, matching[0], direction, depth)
        rows = _read(store, list(graph.manifests.values()))  # it may be the beginning of an id
    among = _upstream_among if direction == "upstream" else _downstream_among
    return among(rows, graph, identifier, depth)


def _of_artifact(graph: ArtifactGraph, artifact_id: str, direction: Direction, depth: int | None) -> Reach:
    walk = graph.ancestors if direction == "upstream" else graph.descendants
    steps = walk({artifact_id: START}, depth)
    trained = () if direction == "upstream" else graph.policies_trained_on(artifact_id)
    things = [each for each in _artifacts(graph, steps) if each.id != artifact_id]
    return Reach("artifact", artifact_id, direction, tuple(things), tuple(t for t in trained if t in steps))


def explain(
    store: ArtifactStore, run: Run | None, identifier: str, depth: int
) -> tuple[Reach, dict[str, Any]]:
    """Like `upstream`, with what is told of the thing itself, and of each row (`LineageRows.facts`)."""
    manifests = manifests_of(store, run)
    rows = _read(store, manifests)
    reach = _upstream_among(rows, ArtifactGraph(manifests), identifier, depth)
    things = [
        thing
        if thing.kind == "artifact"
        else replace(thing, facts={**thing.facts, **rows.facts(thing.kind, thing.id)})
        for thing in reach.things
    ]
    return replace(reach, things=tuple(things)), rows.facts(reach.kind, reach.id)


def _upstream_among(rows: LineageRows, graph: ArtifactGraph, identifier: str, depth: int | None) -> Reach:
    """What something came from, as far as these rows say; arguments and errors are those of `upstream`."""
    kind, found = identify(rows, identifier)
    if kind == "artifact":
        return _of_artifact(graph, found, "upstream", depth)
    links = [RowStep(kind, found, 0, "", ""), *RowLinks(rows).origins(kind, found, depth)]
    described = _described(rows, links)
    starts: dict[str, Visit] = {}
    for step in links:
        for holder in described[step.kind, step.id].holders:
            starts.setdefault(holder, Visit(step.depth + 1, "artifact that holds it", step.id))
    things = [*_rows(described, links[1:]), *_artifacts(graph, graph.ancestors(starts, depth))]
    return Reach(kind, found, "upstream", _nearest_first(things))


def downstream(store: ArtifactStore, run: Run | None, identifier: str, depth: int | None = None) -> Reach:
    """All that an artifact, trajectory, SFT row or memory entry reached, in all runs of the store.

    A row reached the rows that came from it, the policies that trained on any of these, and all that was
    made from those policies. Arguments and errors are those of `upstream`.
    """
    manifests = list(store.list())
    rows, graph = _read(store, manifests), ArtifactGraph(manifests)
    own = None if run is None else set(graph.ancestors({entry.artifact_id: START for entry in run.stages()}))
    return _downstream_among(rows, graph, identifier, depth, own)


def _downstream_among(
    rows: LineageRows,
    graph: ArtifactGraph,
    identifier: str,
    depth: int | None,
    own: Collection[str] | None = None,
) -> Reach:
    """What something reached, as far as these rows say; the id is looked for in the artifacts `own`, or in
    all if None. Arguments and errors are those of `downstream`."""
    kind, found = identify(rows, identifier, within=own)
    if kind == "artifact":
        return _of_artifact(graph, found, "downstream", depth)
    links = [RowStep(kind, found, 0, "", ""), *RowLinks(rows).derived(kind, found, depth)]
    described = _described(rows, links)
    holders = dict.fromkeys(holder for row in described.values() for holder in row.holders)
    policies = {holder: graph.policies_trained_on(holder) for holder in holders}
    starts: dict[str, Visit] = {}
    for step in links:
        for holder in described[step.kind, step.id].holders:
            for policy in policies[holder]:
                starts.setdefault(policy, Visit(step.depth + 1, "policy that trained on it", step.id))
    steps = graph.descendants(starts, depth)
    things = [*_rows(described, links[1:]), *_artifacts(graph, steps)]
    trained = [policy for policy in starts if policy in steps]
    return Reach(kind, found, "downstream", _nearest_first(things), tuple(trained))


def _read(store: ArtifactStore, manifests: Sequence[Manifest]) -> LineageRows:
    rows = LineageRows(store, manifests)
    for kind, facts in _ROW_FACTS.items():
        rows.read(kind, list(dict.fromkeys([*LINK_COLUMNS[kind], *facts])))
    return rows


@dataclass
class _Row:
    """The facts shown of a row, and the artifacts that hold it."""

    facts: dict[str, Any]
    holders: list[str]


def _described(rows: LineageRows, steps: Sequence[RowStep]) -> dict[tuple[RowKind, str], _Row]:
    described: dict[tuple[RowKind, str], _Row] = {}
    for kind, columns in _ROW_FACTS.items():
        ids = [step.id for step in steps if step.kind == kind]
        for facts in rows.of_ids(kind, ids, columns).iter_rows(named=True) if ids else ():
            row_id, holder = facts.pop("id"), facts["artifact_id"]
            described.setdefault((kind, row_id), _Row(facts, [])).holders.append(holder)
    return described


def _rows(described: Mapping[tuple[RowKind, str], _Row], steps: Sequence[RowStep]) -> list[Reached]:
    return [
        Reached(step.kind, step.id, step.depth, step.relation, step.via, described[step.kind, step.id].facts)
        for step in steps
    ]


def _artifacts(graph: ArtifactGraph, steps: Mapping[str, Visit]) -> list[Reached]:
    found = []
    for artifact_id, step in steps.items():
        manifest = graph.manifests.get(artifact_id)
        facts = {} if manifest is None else {name: getattr(manifest, name) for name in _ARTIFACT_FACTS}
        found.append(Reached("artifact", artifact_id, step.depth, step.relation, step.via, facts))
    return found


def _nearest_first(things: Sequence[Reached]) -> tuple[Reached, ...]:
    return tuple(sorted(things, key=lambda thing: thing.depth))


_ARTIFACT_FACTS = ("stage", "kind", "iteration", "run", "policy_version", "metrics")
