"""The lineage of a run as a grid to be drawn: a row for each iteration, a column for each stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from erl_pipeline.evaluation.history import StageRecord
from erl_pipeline.plan.column import Column
from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import ArtifactKind
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.lineage import ArtifactGraph, downstream, runs_by_artifact, upstream
from storage.lineage.graph import START
from storage.runs.ledger import LedgerEntry
from storage.runs.run import Run, RunStore
from storage.wording import counted

DEFAULT_ITERATIONS = 6
MOST_ITERATIONS = 60
"""The most rows of one picture; nobody reads more."""

_SHORT = 8
_MOST_NUMBERS = 4
"""The most columns whose values a box shows."""
_MOST_COUNTERS = 2
"""The most counters that a box shows if its stage has no columns."""


@dataclass(frozen=True)
class Box:
    """One artifact, or those of one stage in one iteration, such as its shards."""

    row: int
    column: int
    stage: str
    kind: ArtifactKind
    artifact_ids: tuple[str, ...]
    lines: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    """Its details, shown where there is room: name and value."""
    shared_with: tuple[str, ...]
    """Other runs whose ledgers name it."""
    chosen: bool


@dataclass(frozen=True)
class Arrow:
    """An input of a box. `source` is the number of the input's box, `target` that of the box made from it;
    `name` is the input's name there, and `kind` its kind of artifact."""

    source: int
    target: int
    name: str
    kind: ArtifactKind


@dataclass(frozen=True)
class Grid:
    """What a drawing shows. Arrows end in the row where they start, or in the next one."""

    title: str
    caption: str
    rows: tuple[str, ...]
    columns: int
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    artifacts: int
    iterations: tuple[int, ...]


def lay_out(
    store: ArtifactStore,
    runs: RunStore,
    run_name: str,
    columns: Sequence[Column],
    iterations: tuple[int, int] | None = None,
    of: str | None = None,
) -> Grid:
    """The grid of a run's artifacts.

    Args:
        columns: the columns of the run's method; each box shows those of its stage.
        iterations: first and last iteration to show; None for the last `DEFAULT_ITERATIONS`, or with `of` for
            those around it. What came before the first iteration has its own row above iteration 1.
        of: the id of an artifact or row, or its beginning; only what it came from and what it reached is
            shown.

    Raises InputError for an unknown run or id, for iterations that the run does not have, and for more
    than `MOST_ITERATIONS`.
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
    if last_shown - first_shown >= MOST_ITERATIONS:
        raise InputError(
            f"--iteration {first_shown}..{last_shown} are {last_shown - first_shown + 1} iterations; at most "
            f"{MOST_ITERATIONS} can be read in one drawing."
        )
    shown = [
        entry
        for entry in entries
        if first_shown <= (entry.iteration or 0) <= last_shown or (first_shown == 1 and not entry.iteration)
    ]
    if not shown:
        raise InputError(f"--iteration {first_shown}..{last_shown}: there is nothing of {of} in them.")
    caption = f"{subject}iterations {first_shown} to {last_shown} of {last}"
    if last_shown - first_shown < last - 1:
        caption += "; --iteration A..B draws others"
    return _grid(store, run_name, columns, caption, shown, runs_by_artifact(runs), chosen)


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


def _grid(
    store: ArtifactStore,
    run_name: str,
    columns: Sequence[Column],
    caption: str,
    shown: Sequence[LedgerEntry],
    runs_of: Mapping[str, list[str]],
    chosen: frozenset[str],
) -> Grid:
    iterations = sorted({entry.iteration or 0 for entry in shown})
    places_of = _columns(shown)
    groups: dict[tuple[int, str], list[StageRecord]] = {}
    for entry in shown:
        manifest = store.find(entry.artifact_id, entry.stage)
        if manifest is None:
            raise InputError(f"artifact {entry.artifact_id} of run {run_name} is not in the store.")
        record = StageRecord(entry.iteration or 0, entry.stage, entry.key, entry.reused, manifest)
        groups.setdefault((record.iteration, record.stage), []).append(record)
    box_of = {
        record.manifest.artifact_id: number
        for number, records in enumerate(groups.values())
        for record in records
    }
    kinds = [records[0].kind for records in groups.values()]
    row_of = [iterations.index(iteration) for iteration, _ in groups]
    boxes, arrows = [], dict[Arrow, None]()
    for number, ((_, stage), records) in enumerate(groups.items()):
        far: dict[str, str] = {}
        for record in records:
            for name, input_id in record.manifest.inputs.items():
                source = box_of.get(input_id)
                if source == number:
                    continue
                if source is not None and 0 <= row_of[number] - row_of[source] <= 1:
                    # The inputs of a list are numbered, such as `shard-0003`.
                    arrows[Arrow(source, number, name.partition("-")[0], kinds[source])] = None
                else:
                    far[name] = input_id
        manifests = [record.manifest for record in records]
        own = {run for manifest in manifests for run in runs_of.get(manifest.artifact_id, [])} - {run_name}
        boxes.append(
            Box(
                row=row_of[number],
                column=places_of[stage],
                stage=stage,
                kind=kinds[number],
                artifact_ids=tuple(manifest.artifact_id for manifest in manifests),
                lines=tuple(_lines(records, columns, far)),
                facts=tuple(_facts(manifests)),
                shared_with=tuple(sorted(own)),
                chosen=any(manifest.artifact_id in chosen for manifest in manifests),
            )
        )
    return Grid(
        title=f"Lineage of run {run_name}",
        caption=caption,
        rows=tuple(f"iteration {iteration}" if iteration else "before" for iteration in iterations),
        columns=max(places_of.values()) + 1,
        boxes=tuple(boxes),
        arrows=tuple(arrows),
        artifacts=len(box_of),
        iterations=tuple(iterations),
    )


def _columns(shown: Sequence[LedgerEntry]) -> dict[str, int]:
    """The column of each stage, in the order in which an iteration runs them. Stages that run only before the
    first iteration use the same columns from the left."""
    repeated = list(dict.fromkeys(entry.stage for entry in shown if entry.iteration))
    columns = {stage: column for column, stage in enumerate(repeated)}
    before = list(dict.fromkeys(entry.stage for entry in shown if not entry.iteration))
    taken = {columns[stage] for stage in before if stage in columns}
    free = (column for column in count() if column not in taken)
    return columns | {stage: next(free) for stage in before if stage not in columns}


def _lines(
    records: Sequence[StageRecord], columns: Sequence[Column], far: Mapping[str, str]
) -> Iterable[str]:
    manifests = [record.manifest for record in records]
    first = manifests[0]
    if len(manifests) == 1:
        yield first.artifact_id[:12]
    else:
        yield counted(len(manifests), "artifact")
    told = set()
    for what, versions in (
        ("policy", {manifest.policy_version for manifest in manifests}),
        ("memory", {manifest.memory_version for manifest in manifests}),
    ):
        others = sorted(version for version in versions if version and version != first.artifact_id)
        told.update(others)
        if others:
            yield f"{what} {', '.join(version[:_SHORT] for version in others[:2])}"
    rows = sum(entry.rows or 0 for manifest in manifests for entry in manifest.files)
    if rows:
        yield counted(rows, "row")
    if len(records) == 1:
        yield from _numbers(records[0], columns)
    for name, input_id in [each for each in far.items() if each[1] not in told][:1]:
        yield f"{name} {input_id[:_SHORT]}"


def _numbers(record: StageRecord, columns: Sequence[Column]) -> Iterable[str]:
    """The values of a stage's columns, two to a line; if it has no columns, its first counters."""
    of_stage = [column for column in columns if column.in_tables and column.stage == record.stage]
    if not of_stage:
        for name, number in list(record.counters.items())[:_MOST_COUNTERS]:
            yield f"{name.replace('_', ' ')} {number:,}"
    words = [
        f"{column.label} {column.text(value)}"
        for column in of_stage
        if (value := record.value(column)) is not None
    ]
    for place in range(0, min(len(words), _MOST_NUMBERS), 2):
        yield ", ".join(words[place : place + 2])


def _facts(manifests: Sequence[Manifest]) -> Iterable[tuple[str, str]]:
    first = manifests[0]
    yield "stage", first.stage
    yield "made by run", ", ".join(sorted({manifest.run for manifest in manifests}))
    for manifest in manifests[:20]:
        yield "artifact", manifest.artifact_id
    if len(manifests) > 20:
        yield "artifact", f"and {len(manifests) - 20} more"
    if len(manifests) == 1:
        yield "finished", first.finished_at.strftime("%Y-%m-%d %H:%M:%S UTC")
        if first.policy_version is not None:
            yield "policy version", first.policy_version
        if first.memory_version is not None:
            yield "memory version", first.memory_version
        for name, input_id in first.inputs.items():
            yield f"input {name}", input_id
        for name, value in {**first.counters, **first.metrics}.items():
            yield name.replace("_", " "), f"{value:,.6g}" if isinstance(value, float) else f"{value:,}"
    files = [entry for manifest in manifests for entry in manifest.files]
    yield "files", f"{len(files)}, {sum(entry.bytes for entry in files):,} bytes"
    yield "code version", ", ".join(sorted({manifest.code_version for manifest in manifests}))
