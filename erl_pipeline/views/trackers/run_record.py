"""One writer's record of a run: brought up to date with the ledger first, then extended stage by stage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from erl_pipeline.evaluation.history import is_on_request
from erl_pipeline.views.trackers.writer import LastingWriter, Mark, MetricsWriter
from storage.artifacts.recipe import digest
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact
from storage.runs.ledger import LedgerEntry
from storage.runs.warnings import RunWarning


class _Artifact(NamedTuple):
    stage: str
    key: str
    artifact_id: str


class RunRecord:
    """What a writer holds of a run, artifact by artifact, each once.

    A writer that begins empty gets all that the ledger has. A `LastingWriter` gets only what came after its
    mark, or everything if the mark does not match the ledger. Shards, whose numbers another artifact sums
    up, are left out, and so are evaluations on request, which are not part of the training.

    Args:
        entries: the latest ledger entry of each place.
        lag: how many iterations before the newest may still be at work.
    """

    def __init__(
        self, writer: MetricsWriter, store: ArtifactStore, entries: Iterable[LedgerEntry], lag: int = 0
    ) -> None:
        self._writer = writer
        self._store = store
        self._lag = lag
        self._written: dict[int, dict[_Artifact, None]] = {}
        self._digests: list[str] = []
        for entry in entries:
            if not _left_out(entry):
                found = self._written.setdefault(entry.iteration or 0, {})
                found[_artifact(entry)] = None
        self._marked = -1
        if isinstance(writer, LastingWriter):
            mark = writer.mark()
            if mark is not None and self._digest(mark.iteration) == mark.digest:
                self._marked = mark.iteration
            writer.supersede(self._marked + 1)
        self._write_again(self._marked + 1)

    def warn(self, warning: RunWarning) -> None:
        """Record a warning of the run."""
        self._writer.warn(warning)
        self._writer.flush()

    def add(self, entry: LedgerEntry) -> None:
        """Record an artifact, unless it is recorded already; one that it replaces no longer counts."""
        iteration, artifact = entry.iteration or 0, _artifact(entry)
        written = self._written.get(iteration, {})
        if _left_out(entry) or artifact in written:
            return
        replaced = {other for other in written if other[:2] == artifact[:2]}
        self._written[iteration] = {other: None for other in written if other not in replaced} | {
            artifact: None
        }
        if isinstance(self._writer, LastingWriter) and (replaced or iteration <= self._marked):
            if replaced:
                # Later artifacts are added again one after the other; the next start writes what is missed.
                self._written = {at: found for at, found in self._written.items() if at <= iteration}
            self._set_mark(iteration - 1, lower=True)
            self._writer.supersede(iteration)
            self._write_again(iteration)
        else:
            self._write(iteration, artifact)
            self._flush()

    def _write_again(self, first: int) -> None:
        """Write what the run has from this iteration on."""
        for iteration in sorted(at for at in self._written if at >= first):
            for artifact in list(self._written[iteration]):
                self._write(iteration, artifact)
        self._flush()

    def _write(self, iteration: int, artifact: _Artifact) -> None:
        """Write an artifact's numbers. A damaged one is made again later, and is written then."""
        try:
            manifest = self._store.find(artifact.artifact_id, artifact.stage)
        except DamagedArtifact:
            manifest = None
        if manifest is None:
            del self._written[iteration][artifact]
        else:
            self._writer.write(iteration, manifest)

    def _flush(self) -> None:
        self._writer.flush()
        self._set_mark(max(self._written, default=0) - 1 - self._lag)

    def _set_mark(self, iteration: int, lower: bool = False) -> None:
        """Mark the record as complete through this iteration, which comes before those still at work."""
        if isinstance(self._writer, LastingWriter) and (iteration > self._marked or lower):
            self._writer.set_mark(Mark(iteration, self._digest(iteration)))
            self._marked = iteration
        if lower:
            del self._digests[max(0, iteration + 1) :]

    def _digest(self, through: int) -> str:
        """The digest over all artifacts through an iteration; each includes that of the iteration before."""
        for iteration in range(len(self._digests), through + 1):
            before = self._digests[-1] if self._digests else ""
            self._digests.append(digest([before, sorted(self._written.get(iteration, {}))]))
        return self._digests[through] if through >= 0 else ""


def _left_out(entry: LedgerEntry) -> bool:
    return entry.kind == "trajectories" or is_on_request(entry.stage)


def _artifact(entry: LedgerEntry) -> _Artifact:
    return _Artifact(entry.stage, entry.key, entry.artifact_id)
