"""Computing stored artifacts again and comparing the bytes: an audit of reproducibility."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, Literal, TypeVar

import torch

from erl_pipeline.config.run import RunConfig
from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.iteration import run_iteration, stage_rank
from erl_pipeline.pipeline.outcome import ProgressListener, StageOutcome
from erl_pipeline.pipeline.stored_run import PREPARATIONS, StoredRun, stored_outcome
from erl_pipeline.policies.pretrained import LoadedPolicy
from erl_pipeline.stages.bootstrap import bootstrap
from erl_pipeline.stages.evaluate import evaluate
from erl_pipeline.stages.prepare_tasks import prepare_tasks
from storage.artifacts.manifest import Manifest, package_versions
from storage.artifacts.recipe import ArtifactKind
from storage.artifacts.staging import StagingFolder, remove_abandoned
from storage.artifacts.store import Artifact, ArtifactStore
from storage.errors import DamagedArtifact
from storage.runs.ledger import LedgerEntry

T = TypeVar("T")

Verdict = Literal["equal", "not promised", "different", "other recipe", "damaged"]
"""`equal`: every file has the stored bytes. `not promised`: it has not, but the artifact's manifest promises
none (a GPU, a server that batches). `other recipe`: this program's stage would make another artifact.
`damaged`: the stored files are no longer those of their manifest."""

REFUTED: frozenset[Verdict] = frozenset({"different", "other recipe", "damaged"})
"""Verdicts of artifacts that are not what computing them again gives."""


@dataclass(frozen=True)
class AuditResult:
    """One artifact that was computed again. `differences` has a line for each file or counter that differs,
    and for each package whose version does."""

    iteration: int
    stage: str
    key: str
    artifact_id: str
    verdict: Verdict
    files: int
    seconds: float
    differences: tuple[str, ...] = ()


def audit_order(iteration: int, stage: str) -> tuple[int, int]:
    """Where a stage stands in a run; the evaluation of the first checkpoint comes after the preparations."""
    return iteration, PREPARATIONS.index(stage) - 10 if stage in PREPARATIONS else stage_rank(stage)


@contextmanager
def open_audit(
    config: RunConfig,
    store: ArtifactStore,
    stored: StoredRun,
    scratch: Path,
    listener: ProgressListener,
    stop: Event,
) -> Iterator[AuditContext]:
    """A context in which stages are computed anew, in a folder under `scratch` that is gone afterwards.

    Neither the run nor its store is written to, so that a run at work can be audited too.
    """
    remove_abandoned(scratch)
    folder = StagingFolder(scratch)
    try:
        context = AuditContext(config, AuditStore(folder.path, store), stored.run, listener, stop)
        try:
            yield context
        finally:
            context.close()
    finally:
        folder.release()


def audit(
    context: AuditContext, stored: StoredRun, iteration: int, stage: str, last: int
) -> list[AuditResult]:
    """Compute everything again from a stage of an iteration through the iteration `last`.

    Every stage gets the stored inputs, so that a stage that differs does not make all later ones differ.
    Iteration 0 is what came before the first. Raises InputError when the run lacks one of the stages.
    """
    runner = _AuditRunner(context, stored, audit_order(iteration, stage))
    if iteration == 0:
        runner.call("prepare_tasks", prepare_tasks, context)
        first = runner.call("bootstrap", bootstrap, context).artifact_id
        if stored.find(0, "evaluate"):
            tasks = stored.entry(0, "prepare_tasks").artifact_id
            runner.call("evaluate", evaluate, context, 0, first, tasks)
    for at in range(max(iteration, 1), last + 1):
        runner.at = at
        state = stored.state_before(at)
        # Where a run ended it evaluated, whether or not that iteration was due.
        evaluated = stored.find(at, "evaluate") is not None
        run_iteration(context, at, state, runner, last=evaluated)
    return runner.results


class AuditStore(ArtifactStore):
    """Gives the artifacts of another store, but for those that are to be made again; keeps only the
    manifests of what is made."""

    def __init__(self, folder: Path, stored: ArtifactStore) -> None:
        super().__init__(str(folder), stored.threads)
        self.stored = stored
        self.made: dict[str, Manifest] = {}
        self._again: set[str] = set()

    def make_again(self, artifact_id: str) -> None:
        """Let this artifact be looked for in vain, once."""
        self._again.add(artifact_id)

    def find(self, artifact_id: str, stage: str | None = None) -> Manifest | None:
        if artifact_id in self._again:
            self._again.discard(artifact_id)
            return None
        return self.stored.find(artifact_id, stage)

    def open(self, artifact_id: str) -> Artifact:
        return self.stored.open(artifact_id)

    def publish(self, manifest: Manifest, folder: Path) -> Artifact:
        self.made[manifest.artifact_id] = manifest
        return Artifact(manifest, folder)


class AuditContext(RunContext):
    """A context that leaves the run's ledger alone, and gives every stage its policy from the store."""

    store: AuditStore

    def record(self, outcome: StageOutcome, kind: ArtifactKind, key: str) -> None:
        return

    def keep_policy(self, checkpoint_id: str, policy: LoadedPolicy) -> None:
        return


class _AuditRunner:
    """A `StageRunner` that computes stages from `begin` on and hands on what is stored."""

    def __init__(self, context: AuditContext, stored: StoredRun, begin: tuple[int, int]) -> None:
        self.results: list[AuditResult] = []
        self.at = 0
        self._context = context
        self._stored = stored
        self._begin = begin

    def call(self, stage: str, function: Callable[..., StageOutcome], *args: Any) -> StageOutcome:
        return self._again(self._stored.entry(self.at, stage), function, *args)

    def map(
        self, stage: str, function: Callable[..., StageOutcome], context: RunContext, items: Sequence[Any]
    ) -> list[StageOutcome]:
        return [
            self._again(self._stored.entry(self.at, stage, f"{number:04d}"), function, context, item)
            for number, item in enumerate(items)
        ]

    def iteration(self, iteration: int, body: Callable[[], T]) -> T:
        return body()

    def _again(self, entry: LedgerEntry, function: Callable[..., StageOutcome], *args: Any) -> StageOutcome:
        outcome = stored_outcome(self._context.store.stored, entry)
        if audit_order(self.at, entry.stage) < self._begin:
            return outcome
        try:
            stored = self._context.store.stored.open(entry.artifact_id).manifest
        except DamagedArtifact as damage:
            self.results.append(_result(self.at, entry, "damaged", 0, 0.0, (str(damage),)))
            return outcome
        self._use_threads(stored)
        self._context.store.make_again(entry.artifact_id)
        made = function(*args)
        self.results.append(self._compare(entry, stored, made))
        return outcome

    def _use_threads(self, stored: Manifest) -> None:
        """Compute with as many threads as the artifact was made with: its bytes depend on them."""
        threads = int(stored.environment.get("threads", self._context.config.threads))
        self._context.config = self._context.config.model_copy(update={"threads": threads})
        torch.set_num_threads(threads)

    def _compare(self, entry: LedgerEntry, stored: Manifest, outcome: StageOutcome) -> AuditResult:
        made = self._context.store.made.get(entry.artifact_id)
        if made is None:
            what = (f"computed {outcome.artifact_id}: the program or its settings are not those of then",)
            return _result(self.at, entry, "other recipe", 0, outcome.seconds, what)
        differences = manifest_differences(stored, made)
        verdict: Verdict = "equal"
        if differences:
            verdict = "not promised" if stored.determinism == "approximate" else "different"
            differences += _package_differences(stored.packages)
        return _result(self.at, entry, verdict, len(stored.files), outcome.seconds, tuple(differences))


def manifest_differences(stored: Manifest, made: Manifest) -> list[str]:
    """Files and counters in which two makings of one artifact differ, one line each."""
    before = {entry.path: entry for entry in stored.files}
    after = {entry.path: entry for entry in made.files}
    lines = []
    for name in sorted(before | after):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            lines.append(f"{name} is only in the {'new' if old is None else 'stored'} artifact")
        elif old.sha256 != new.sha256:
            lines.append(
                f"{name} has SHA-256 {new.sha256[:12]}, {new.bytes:,} bytes; stored are {old.sha256[:12]}, "
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
    iteration: int,
    entry: LedgerEntry,
    verdict: Verdict,
    files: int,
    seconds: float,
    differences: tuple[str, ...],
) -> AuditResult:
    return AuditResult(
        iteration, entry.stage, entry.key, entry.artifact_id, verdict, files, seconds, differences
    )
