"""The lineage of a run as a graph for programs that draw: Mermaid, JSON."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from storage.artifacts.recipe import ArtifactKind
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.lineage.graph import START, ArtifactGraph, runs_by_artifact
from storage.lineage.reach import downstream, upstream
from storage.runs.ledger import LedgerEntry
from storage.runs.run import Run, RunStore

DEFAULT_ITERATIONS = 6
FORMATS = (".mmd", ".json")
"""Endings of files: Mermaid, JSON."""


@dataclass(frozen=True)
class LineageBox:
    """One artifact, or those of one stage in one iteration, such as its shards."""

    stage: str
    iteration: int
    """0: before the first iteration."""
    kind: ArtifactKind
    artifact_ids: tuple[str, ...]
    shared_with: tuple[str, ...]
    """Other runs whose ledgers name it."""
    chosen: bool


@dataclass(frozen=True)
class LineageLink:
    """`target` was made from `source`, its input `name`; both are numbers of boxes."""

    source: int
    target: int
    name: str


@dataclass(frozen=True)
class RunLineage:
    """What a graph shows; links to artifacts outside it are left out."""

    run: str
    caption: str
    boxes: tuple[LineageBox, ...]
    links: tuple[LineageLink, ...]

    @property
    def iterations(self) -> list[int]:
        return sorted({box.iteration for box in self.boxes})


def run_lineage(
    store: ArtifactStore,
    runs: RunStore,
    run_name: str,
    iterations: tuple[int, int] | None = None,
    of: str | None = None,
) -> RunLineage:
    """The artifacts of a run and the links between them.

    Args:
        iterations: first and last iteration to show; None for the last `DEFAULT_ITERATIONS`, or with `of` for
            those around it. What came before the first iteration is shown with iteration 1.
        of: the id of an artifact or row, or its beginning; only what it came from and what it reached is
            shown.

    Raises InputError for an unknown run or id, and for iterations that the run does not have.
    """
    run = runs.open(run_name)
    # An artifact that the ledger names twice is shown where it was named first.
    entries = list({entry.artifact_id: entry for entry in reversed(run.stages())}.values())[::-1]
    if not entries:
        raise InputError(f"run {run_name} has no artifact yet; train it first.")
    chosen: frozenset[str] = frozenset()
    subject = ""
    if of is not None:
        related, chosen = _related(store, run, of)
        entries = [entry for entry in entries if entry.artifact_id in related]
        subject = f"{of[:12]}, what it came from and what it reached; "
    last = max(1, *(entry.iteration or 0 for entry in entries))
    first_shown, last_shown = iterations or _default_range(entries, chosen, last)
    if first_shown > last:
        raise InputError(f"--iteration {first_shown}..{last_shown}: the last one to show is {last}.")
    last_shown = min(last_shown, last)
    shown = [
        entry
        for entry in entries
        if first_shown <= (entry.iteration or 0) <= last_shown or (first_shown == 1 and not entry.iteration)
    ]
    if not shown:
        raise InputError(f"--iteration {first_shown}..{last_shown}: there is nothing of {of} in them.")
    caption = f"{subject}iterations {first_shown} to {last_shown} of {last}"
    if last_shown - first_shown < last - 1:
        caption += "; --iteration A..B shows others"
    return _graph(store, run_name, caption, shown, runs_by_artifact(runs), chosen)


def _related(store: ArtifactStore, run: Run, of: str) -> tuple[frozenset[str], frozenset[str]]:
    """The artifacts that `of` came from or reached, itself included; and those of them that represent it.

    A row is represented by the artifacts that hold it. If it reached other rows, the artifacts that hold
    these are included, and all artifacts between these and the policies that trained on them.
    """
    above, below = upstream(store, run, of), downstream(store, run, of)
    found = {thing.id for thing in [*above.things, *below.things] if thing.kind == "artifact"}
    if above.kind == "artifact":
        return frozenset(found | {above.id}), frozenset({above.id})
    holders = {thing.id for thing in above.things if thing.kind == "artifact" and thing.via == above.id}
    reached = {thing.facts["artifact_id"] for thing in below.things if thing.kind != "artifact"}
    graph = ArtifactGraph(store.list())
    after = graph.descendants(dict.fromkeys(reached, START))
    before = graph.ancestors(dict.fromkeys(below.trained, START))
    return frozenset(found | reached | (after.keys() & before.keys())), frozenset(holders)


def _default_range(entries: Sequence[LedgerEntry], chosen: frozenset[str], last: int) -> tuple[int, int]:
    at = max((entry.iteration or 0 for entry in entries if entry.artifact_id in chosen), default=last)
    last_shown = min(last, at + DEFAULT_ITERATIONS // 2)
    return max(1, last_shown - DEFAULT_ITERATIONS + 1), max(1, last_shown)


def _graph(
    store: ArtifactStore,
    run_name: str,
    caption: str,
    shown: Sequence[LedgerEntry],
    runs_of: dict[str, list[str]],
    chosen: frozenset[str],
) -> RunLineage:
    groups: dict[tuple[int, str], list[LedgerEntry]] = {}
    for entry in shown:
        groups.setdefault((entry.iteration or 0, entry.stage), []).append(entry)
    number_of = {entry.artifact_id: number for number, of in enumerate(groups.values()) for entry in of}
    boxes, links = [], dict[LineageLink, None]()
    for (iteration, stage), of in groups.items():
        ids = tuple(entry.artifact_id for entry in of)
        shared = {name for each in ids for name in runs_of.get(each, [])} - {run_name}
        boxes.append(
            LineageBox(stage, iteration, of[0].kind, ids, tuple(sorted(shared)), not chosen.isdisjoint(ids))
        )
        for each in ids:
            manifest = store.find(each, stage)
            if manifest is None:
                raise InputError(f"artifact {each} of run {run_name} is not in the store.")
            for name, input_id in manifest.inputs.items():
                source = number_of.get(input_id, number_of[each])
                if source != number_of[each]:
                    # The inputs of a list are numbered, such as `shard-0003`.
                    links[LineageLink(source, number_of[each], name.partition("-")[0])] = None
    return RunLineage(run_name, caption, tuple(boxes), tuple(links))


def graph_text(lineage: RunLineage, suffix: str) -> str:
    """The text of a file with one of the endings in `FORMATS`."""
    if suffix == ".json":
        return json.dumps(asdict(lineage), indent=2) + "\n"
    return "\n".join(_mermaid(lineage)) + "\n"


def _mermaid(lineage: RunLineage) -> Iterator[str]:
    yield f"%% Lineage of run {lineage.run}: {lineage.caption}"
    yield "flowchart LR"
    for iteration in lineage.iterations:
        yield f'  subgraph i{iteration}["{f"iteration {iteration}" if iteration else "before"}"]'
        for number, box in enumerate(lineage.boxes):
            if box.iteration == iteration:
                style = ":::chosen" if box.chosen else ":::shared" if box.shared_with else ""
                yield f'    n{number}["{_label(box)}"]{style}'
        yield "  end"
    for link in lineage.links:
        yield f"  n{link.source} -->|{link.name}| n{link.target}"
    yield "  classDef chosen stroke-width:4px"
    yield "  classDef shared stroke-dasharray:5 3"


def _label(box: LineageBox) -> str:
    ids = box.artifact_ids
    lines = [box.stage, ids[0][:12] if len(ids) == 1 else f"{len(ids)} artifacts"]
    lines += [f"shared with {', '.join(box.shared_with)}"] if box.shared_with else []
    return "<br/>".join(lines)
