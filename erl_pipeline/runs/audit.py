"""Computing stored artifacts again and comparing the bytes: an audit of reproducibility."""

import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Literal

from erl_pipeline.config.plugins import operational_part
from erl_pipeline.plan.forecast import recipe_differences
from erl_pipeline.plan.plan import Plan, PlannedStage
from erl_pipeline.plan.repetition import made_since_state
from erl_pipeline.plan.runner import StageJob, compute, outcome_of
from erl_pipeline.plan.stage import Listener, Resources, StageProgress, WorkerSettings
from erl_pipeline.policies.checkpoints import lacks_state
from erl_pipeline.runs.config import run_config
from erl_pipeline.runs.planning import plan_as_made
from erl_pipeline.runs.run_plans import shared_stages
from erl_pipeline.trainers.interface import operational_part_here
from storage.artifacts.artifact import Artifact
from storage.artifacts.layout import StagingFolder, remove_abandoned
from storage.artifacts.manifest import MEASURED_TABLES, Manifest, package_versions
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact, NotRepeated, PrunedFileError, StateNotKept
from storage.runs.run import RunStore

AuditVerdict = Literal["equal", "not promised", "different", "other recipe", "damaged", "input pruned"]
"""`equal`: every file has the stored bytes; for files that retention has removed, the manifest has their
hashes. `different`: some file or counter differs. `not promised`: the same, but the artifact's manifest does
not promise equal bytes (a GPU, a server that batches). Nothing was computed for the others: `other recipe`,
with today's code the stage would make another artifact; `damaged`, the stored files no longer match their
manifest; `input pruned`, retention has removed a file that the stage reads."""

REFUTED: frozenset[AuditVerdict] = frozenset({"different", "other recipe", "damaged"})
"""Verdicts that refute reproducibility: the stored artifact is not what the stage computes again."""


@dataclass(frozen=True)
class AuditResult:
    """One artifact of an audit. `differences` has a line for each file or counter that differs,
    for each package whose version differs, and for each difference of the recipes."""

    iteration: int
    stage: str
    key: str
    artifact_id: str
    verdict: AuditVerdict
    files: int
    seconds: float
    differences: tuple[str, ...] = ()


def audit(
    store_uri: str,
    run_name: str,
    iteration: int,
    stage: str,
    last: int,
    scratch: Path,
    listener: Listener,
    stop: threading.Event,
) -> list[AuditResult]:
    """Compute everything again, from a stage of an iteration through the iteration `last`, without reuse.

    Every stage gets its stored inputs, so that one stage that differs does not make all later ones differ.
    Iteration 0 is what came before the first iteration. Neither the run nor its store is changed, so a run
    can be audited while it is being trained. What is computed goes under `scratch`, and is removed at the
    end.

    Raises InputError when the run lacks one of the stages, or the iteration has no such stage.
    """
    run = RunStore(store_uri).open(run_name)
    config = run_config(run)
    plan = plan_as_made(store_uri, run, last)
    before = {node.place for node in shared_stages(plan, iteration, stage)}
    again = [node for node in plan.nodes if node.place not in before]
    stored = ArtifactStore(store_uri, config.resources.threads, config.store.cache())
    remove_abandoned(scratch)
    with StagingFolder(scratch) as folder:
        store = ScratchStore(folder.path, stored)
        worker = WorkerSettings(
            store_uri,
            run.name,
            config.resources.threads,
            operational_part("engines", config.engine),
            trainer=operational_part_here(config.trainer),
            deterministic=config.resources.determinism == "bytes",
        )
        with Resources(worker, stop, store) as resources:
            return [_again(plan, node, worker, resources, store, listener) for node in again]


class ScratchStore(ArtifactStore):
    """Opens the artifacts of another store, and keeps only the manifests of new artifacts."""

    def __init__(self, folder: Path, stored: ArtifactStore) -> None:
        super().__init__(str(folder), stored.threads)
        self.stored = stored
        self.made: dict[str, Manifest] = {}

    def find(self, artifact_id: str, stage: str | None = None) -> Manifest | None:
        """The manifest of a stored artifact."""
        return self.stored.find(artifact_id, stage)

    def open(self, artifact_id: str) -> Artifact:
        """A stored artifact."""
        return self.stored.open(artifact_id)

    def reading(self) -> AbstractContextManager[None]:
        """Like the other store's."""
        return self.stored.reading()

    def staying(self) -> AbstractContextManager[None]:
        """Like the other store's."""
        return self.stored.staying()

    def publish(self, manifest: Manifest, folder: Path, unchanged_from: str = "") -> Artifact:
        """Remember what was made; its files go with the scratch folder."""
        self.made[manifest.artifact_id] = manifest
        return Artifact(manifest, folder)


def _again(
    plan: Plan,
    node: PlannedStage,
    worker: WorkerSettings,
    resources: Resources,
    store: ScratchStore,
    listener: Listener,
) -> AuditResult:
    listener.stage_started(node.title)
    started = perf_counter()
    try:
        stored = store.stored.open(node.artifact_id).manifest
    except DamagedArtifact as damage:
        return _result(node, "damaged", 0, started, (str(damage),))
    if node.recipe.artifact_id != node.artifact_id:
        lines = recipe_differences(stored.recipe, node.recipe)
        return _result(node, "other recipe", 0, started, tuple(lines))
    # Bytes depend on the number of threads. New resources make every stage read its policy from the store.
    threads = int(stored.environment.get("threads", resources.settings.threads))
    store.threads = threads
    settings = replace(resources.settings, threads=threads)
    job = StageJob(node, replace(worker, threads=threads), state=not lacks_state(stored))
    try:
        with Resources(settings, resources.stop, store) as own:
            _compute(plan, job, own, StageProgress(node.title, listener, own.stop))
    except PrunedFileError as gone:
        return _result(node, "input pruned", 0, started, (str(gone),))
    except NotRepeated as parted:
        return _result(node, "different", len(stored.files), started, (str(parted),))
    made = store.made[node.artifact_id]
    listener.stage_finished(node.title, outcome_of(node, made, False, perf_counter() - started))
    differences = manifest_differences(stored, made)
    if not differences:
        return _result(node, "equal", len(stored.files), started)
    promised = stored.determinism == "bytes"
    lines = differences + _package_differences(stored.packages)
    return _result(
        node, "different" if promised else "not promised", len(stored.files), started, tuple(lines)
    )


def _compute(plan: Plan, job: StageJob, resources: Resources, progress: StageProgress) -> None:
    """Compute a stage; where it needs the state of an optimizer that was not committed, after the trainings
    that bring it back. Raises StateNotKept where these are not of the plan."""
    try:
        compute(job, resources, progress)
    except StateNotKept as lacking:
        nodes = {node.recipe.artifact_id: node for node in plan.nodes}
        try:
            repeated = made_since_state(lacking.artifact_id, nodes.__getitem__, resources.store.find)
        except KeyError:
            raise lacking from None
        compute(replace(job, repeated=repeated), resources, progress)


def manifest_differences(stored: Manifest, made: Manifest) -> list[str]:
    """The files and counters that differ between two computations of one artifact, one line each."""
    before = {entry.path: entry for entry in stored.files}
    after = {entry.path: entry for entry in made.files}
    lines = []
    for name in sorted(before | after):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            lines.append(f"{name} is only in the {'new' if old is None else 'stored'} artifact")
        elif old.table == new.table and old.table in MEASURED_TABLES and old.rows == new.rows:
            continue  # the times in it are measured
        elif old.sha256 != new.sha256:
            lines.append(
                f"{name} has SHA-256 {new.sha256[:12]}, {new.bytes:,} bytes; stored is {old.sha256[:12]}, "
                f"{old.bytes:,} bytes"
            )
    names = sorted(stored.counters.keys() | made.counters.keys())
    lines += [
        f"counter {name} is {made.counters.get(name)}; stored is {stored.counters.get(name)}"
        for name in names
        if made.counters.get(name) != stored.counters.get(name)
    ]
    return lines


def _package_differences(before: Mapping[str, str]) -> list[str]:
    now = package_versions()
    return [
        f"{name} is {now.get(name, 'absent')} now and was {version}"
        for name, version in before.items()
        if now.get(name) != version
    ]


def _result(
    node: PlannedStage,
    verdict: AuditVerdict,
    files: int,
    started: float,
    differences: tuple[str, ...] = (),
) -> AuditResult:
    return AuditResult(
        iteration=node.iteration or 0,
        stage=node.stage.name,
        key=node.key,
        artifact_id=node.artifact_id,
        verdict=verdict,
        files=files,
        seconds=perf_counter() - started,
        differences=differences,
    )
