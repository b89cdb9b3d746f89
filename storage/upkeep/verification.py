"""Checks of a whole run: files against manifests, rows against rows, the memory's table against artifacts."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import polars as pl

from storage.artifacts.artifact import PrunedFile
from storage.artifacts.manifest import Manifest, Problems
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact
from storage.lineage.graph import Visit, walk_inputs
from storage.lineage.rows import LineageRows, RowKind
from storage.lineage.trained_on import record_file
from storage.memory.checksums import IndexChecksums
from storage.memory.index import MemoryIndex, index_folder
from storage.memory.versions import EMPTY_MEMORY, REQUEST_STAGE
from storage.runs.documents import read_origin
from storage.runs.ledger import LedgerEntry
from storage.runs.run import Run, RunStore
from storage.tables.training import scan_training_records
from storage.upkeep.runs import find_unrecorded


def mend_run(store: ArtifactStore, name: str, config: Mapping[str, Any]) -> list[str]:
    """Write a run's damaged `run.json` again with these settings, and its damaged ledger from its whole lines
    and the stored requests to forget. Returns what was wrong, one sentence for each fault.

    Artifacts whose lines are lost are still in the store: whoever executes the plan finds them.

    Raises RunBusy while the run is being worked on.
    """
    runs = RunStore(store.uri)
    if name not in runs.list():
        return []
    found = [runs.mend_settings(name, config)]
    run = runs.open(name)
    with run.lock():
        found.append(run.mend_ledger(lambda entries: lost_requests(store, run, entries)))
    return [problem for problem in found if problem]


def lost_requests(store: ArtifactStore, run: Run, entries: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """Lines for the requests to forget an entry of a run's memory that are stored, but not in `entries`."""
    known = {entry.artifact_id for entry in entries}
    count = sum(1 for entry in entries if entry.kind == "request")
    lost = [
        manifest
        for manifest in store.list(REQUEST_STAGE)
        # A request of an earlier run with this name was made about another memory.
        if manifest.run == run.name
        and manifest.artifact_id not in known
        and set(manifest.inputs.values()) <= known
    ]
    return [
        LedgerEntry(
            iteration=manifest.iteration,
            stage=manifest.stage,
            kind="request",
            key=f"{count + number:04d}",
            artifact_id=manifest.artifact_id,
            reused=True,
            seconds=0.0,
            recorded_at=datetime.now(UTC),
        )
        for number, manifest in enumerate(sorted(lost, key=lambda manifest: manifest.started_at))
    ]


_EXAMPLES = 5


@dataclass(frozen=True)
class VerificationReport:
    """What was checked, and what is wrong with it; `problems` is empty when all is well."""

    run: str
    artifacts: int
    files: int
    bytes: int
    trajectories: int
    memory_entries: int
    sft_rows: int
    pruned_files: int = 0
    """Number of files that retention has removed; the other counts include them."""
    pruned_bytes: int = 0
    redacted_files: int = 0
    """Number of files of which some rows say nothing any more, since a user was forgotten."""
    problems: Problems = field(default_factory=list)


def verify_run(store: ArtifactStore, run: Run) -> VerificationReport:
    """Hash every artifact that the run's ledger reaches, count rows, and follow every link between rows.

    Links are followed only if all files are undamaged. Changes nothing. Raises StoreError if the run's own
    records (ledger or origin) are damaged.
    """
    read_origin(store.uri, run.name)
    manifests, problems = _reachable(store, run)
    recorded = run.recorded()
    unrecorded = find_unrecorded(store, run, recorded)
    problems += [] if unrecorded is None else [unrecorded.sentence]
    problems += [
        f"request {entry.artifact_id} to forget an entry of the memory is in the store and not in the ledger"
        for entry in lost_requests(store, run, recorded)
    ]
    problems += _line_problems(recorded, manifests)
    recorded_files = _pruned(store, manifests)
    pruned = [file for file in recorded_files if not file.redacted]
    for manifest in manifests:
        found = store.verify(manifest.artifact_id)
        problems += [f"artifact {manifest.artifact_id} ({manifest.stage}): {problem}" for problem in found]
    if not problems:
        problems += _row_problems(store, run, manifests)
    files = [entry for manifest in manifests for entry in manifest.files]

    def rows_of(table: str) -> int:
        return sum(entry.rows or 0 for entry in files if entry.table == table)

    return VerificationReport(
        run=run.name,
        artifacts=len(manifests),
        files=len(files),
        bytes=sum(entry.bytes for entry in files),
        trajectories=rows_of("trajectories"),
        memory_entries=rows_of("memory"),
        sft_rows=rows_of("sft"),
        pruned_files=len(pruned),
        pruned_bytes=sum(file.bytes for file in pruned),
        redacted_files=len(recorded_files) - len(pruned),
        problems=problems,
    )


def _row_problems(store: ArtifactStore, run: Run, manifests: list[Manifest]) -> Problems:
    """Rows that name what is not there, or that do not fit one another."""
    # Trajectories and datasets without inputs were imported.
    imported = [
        manifest.artifact_id
        for manifest in manifests
        if manifest.kind in ("trajectories", "sft_dataset") and not manifest.inputs
    ]
    while True:
        rows = LineageRows(store, manifests)
        pruned = _pruned(store, manifests)
        try:
            return [
                *_link_problems(store, rows, imported),
                *_memory_problems(store, run, manifests),
                *_record_problems(store, rows, manifests),
            ]
        except FileNotFoundError:
            if _pruned(store, manifests) == pruned:
                raise
            # Retention has gone on meanwhile, and files that were just found lie elsewhere now.


def _pruned(store: ArtifactStore, manifests: list[Manifest]) -> list[PrunedFile]:
    files: list[PrunedFile] = []
    for manifest in manifests:
        # A damaged record is reported with the other problems of its artifact.
        with suppress(DamagedArtifact):
            files += store.pruned(manifest).files
    return files


def _reachable(store: ArtifactStore, run: Run) -> tuple[list[Manifest], Problems]:
    """Like `lineage.reachable`, but a missing or damaged artifact is a problem and not an error."""
    damaged: dict[str, str] = {}

    def find(artifact_id: str) -> Manifest | None:
        try:
            return store.find(artifact_id)
        except DamagedArtifact as damage:
            damaged[artifact_id] = str(damage)
            return None

    starts: dict[str, Visit] = {}
    for entry in run.stages():
        named_by = f"the ledger (iteration {entry.iteration}, {entry.stage})"
        starts.setdefault(entry.artifact_id, Visit(0, "", named_by))
    ancestry = walk_inputs(find, starts)
    missing = []
    for artifact_id, visit in ancestry.missing.items():
        if artifact_id not in damaged:
            named_by = f"artifact {visit.via}" if visit.depth else visit.via
            missing.append(f"artifact {artifact_id}, named by {named_by}, is not in the store")
    return list(ancestry.manifests.values()), [*damaged.values(), *missing]


def _line_problems(entries: Sequence[LedgerEntry], manifests: Sequence[Manifest]) -> Problems:
    """Lines of the ledger that say something else than the artifact's manifest.

    The run is not compared: two runs may compute one artifact at the same time, and one run may make again
    what another one had made.
    """
    by_id = {manifest.artifact_id: manifest for manifest in manifests}
    problems = []
    for entry in entries:
        manifest = by_id.get(entry.artifact_id)
        if manifest is None:
            continue
        same = entry.reused or entry.iteration == manifest.iteration
        if entry.stage != manifest.stage or not same:
            problems.append(
                f"the ledger names artifact {entry.artifact_id} as {entry.stage} of iteration "
                f"{entry.iteration or 0}, and it is {manifest.stage} of iteration {manifest.iteration or 0}"
            )
    return problems


def _link_problems(store: ArtifactStore, rows: LineageRows, imported: list[str]) -> Problems:
    """Links that lead nowhere. Rows of `imported` artifacts may name what is in another store."""
    trajectories = rows.scan("trajectory", _LINKS["trajectory"]).collect()
    foreign = pl.col("artifact_id").is_in(imported)
    foreign_ids = trajectories.filter(foreign)["trajectory_id"]
    own = trajectories.filter(~foreign)
    entries = rows.scan("memory_entry", _LINKS["memory_entry"]).collect()
    every_dataset = rows.scan("sft_row", _LINKS["sft_row"]).collect()
    dataset = every_dataset.filter(~foreign)
    own_dataset = dataset.filter(~pl.col("trajectory_id").is_in(foreign_ids.implode()))
    known, known_entries = trajectories["trajectory_id"], entries["entry_id"]
    return [
        *_repeated(trajectories["trajectory_id"]),
        *_repeated(entries["entry_id"]),
        *_repeated(every_dataset["sft_row_id"]),
        *_dangling(trajectories, "parent_trajectory_id", known),
        *_dangling(own, "memory_entry_ids", known_entries),
        *_dangling(own, "policy_version", _committed(store, own["policy_version"])),
        *_dangling(own, "memory_version", _committed(store, own["memory_version"])),
        *_dangling(entries, "source_trajectory_id", known),
        *_dangling(entries, "parent_entry_ids", known_entries),
        *_dangling(entries, "policy_version", _committed(store, entries["policy_version"])),
        *_dangling(dataset, "trajectory_id", known),
        *_dangling(dataset, "reflection_trajectory_id", known),
        *_dangling(dataset, "first_trajectory_id", known),
        *_dangling(own_dataset, "memory_entry_ids", known_entries),
        *_dangling(own_dataset, "policy_version", _committed(store, own_dataset["policy_version"])),
    ]


def _record_problems(store: ArtifactStore, rows: LineageRows, manifests: list[Manifest]) -> Problems:
    """Rows of training records whose trajectory does not exist."""
    files = {
        store.open_file(manifest, name): manifest.artifact_id
        for manifest in manifests
        if (name := record_file(manifest)) is not None
    }
    holders = {str(path): f"of checkpoint {artifact_id}" for path, artifact_id in files.items()}
    records = scan_training_records(list(files), path_column="training record")
    named = records.select(pl.col("training record").replace(holders), "trajectory_id").collect()
    known = rows.scan("trajectory", ["trajectory_id"]).select("trajectory_id").collect()
    return _dangling(named, "trajectory_id", known["trajectory_id"])


_LINKS: dict[RowKind, list[str]] = {
    "trajectory": [
        "trajectory_id",
        "parent_trajectory_id",
        "memory_entry_ids",
        "policy_version",
        "memory_version",
    ],
    "memory_entry": ["entry_id", "source_trajectory_id", "parent_entry_ids", "policy_version"],
    "sft_row": [
        "sft_row_id",
        "trajectory_id",
        "reflection_trajectory_id",
        "first_trajectory_id",
        "memory_entry_ids",
        "policy_version",
    ],
}


def _memory_problems(store: ArtifactStore, run: Run, manifests: list[Manifest]) -> Problems:
    """Check the memory's table. It is made from the artifacts when it is searched, so it may be absent or
    behind, but never different."""
    folder = index_folder(store.uri, run.name)
    memories = {manifest.artifact_id for manifest in manifests if manifest.tables("memory")}
    versions = [entry.artifact_id for entry in run.stages() if entry.artifact_id in memories]
    index = MemoryIndex(folder, store)
    if not versions or not index.exists:
        return []
    if changed := IndexChecksums(folder).changed():
        others = f" and {len(changed) - 1} more of its files" if len(changed) > 1 else ""
        return [
            f"{folder / changed[0]}{others} of the memory's table changed after they were written; delete "
            f"{folder}, and it is rebuilt"
        ]
    newest = index.newest_of(versions)
    if newest == EMPTY_MEMORY or (newest is not None and index.holds(newest)):
        return []
    return [f"the memory's table in {folder} differs from its artifacts; delete it, and it is rebuilt"]


def _committed(store: ArtifactStore, versions: pl.Series) -> pl.Series:
    """Those versions that are artifacts, and the values that mean that there was none."""
    none = ("", EMPTY_MEMORY)
    found = [version for version in versions.unique() if version in none or store.find(version) is not None]
    return pl.Series(found, dtype=pl.String)


def _repeated(ids: pl.Series) -> Problems:
    repeated = ids.filter(ids.is_duplicated()).unique().sort()
    return [f"{ids.name} {value} appears more than once" for value in repeated.head(_EXAMPLES)]


def _dangling(frame: pl.DataFrame, link: str, known: pl.Series) -> Problems:
    """Problems for rows whose column `link` names an id that is not in `known`; rows are named by their first
    column."""
    row_id = frame.columns[0]
    links = frame.select(row=pl.col(row_id), link=pl.col(link))
    if isinstance(frame.schema[link], pl.List):
        links = links.explode("link")
    lost = links.filter(pl.col("link").is_not_null() & ~pl.col("link").is_in(known.implode()))
    return [
        f"{row_id} {row} names {link} {missing}, which does not exist"
        for row, missing in lost.head(_EXAMPLES).rows()
    ]
