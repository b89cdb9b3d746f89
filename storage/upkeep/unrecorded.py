"""What a store holds of a run and the run's ledger lacks: then the ledger is an older copy, put back.

A stage is begun only after what it reads is recorded, so a kill leaves only artifacts that nothing was made
from. An unrecorded artifact that was made from another unrecorded one shows that lines are lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact
from storage.runs.ledger import LedgerEntry
from storage.runs.run import Run, RunStore


@dataclass(frozen=True)
class Unrecorded:
    """Artifacts that a run made from others of its own, where the ledger has neither; the oldest first."""

    run: Run
    artifacts: tuple[Manifest, ...]

    @property
    def sentence(self) -> str:
        """What is wrong, and what mends it."""
        first = self.artifacts[0]
        more = f" and {len(self.artifacts) - 1} more" if len(self.artifacts) > 1 else ""
        found = (
            f"the ledger of run {self.run.name} is older than the store: it lacks artifact "
            f"{first.artifact_id} (iteration {first.iteration or 0}, {first.stage}){more}, and what that was "
            "made from"
        )
        if "method" not in self.run.config:  # a run that is not trained
            return f"{found}. Put the newest copy of the ledger and its head back."
        last = max(manifest.iteration or 1 for manifest in self.artifacts)
        return (
            f"{found}. `erl-pipeline train CONFIG --name {self.run.name} --check --iterations {last}` makes "
            "the ledger again."
        )


def find_unrecorded(store: ArtifactStore, run: Run, entries: Sequence[LedgerEntry]) -> Unrecorded | None:
    """What was made from something else that the ledger lacks too; None if there is nothing.

    Left out is what something else than lost lines explains: what was made before the ledger's first line, by
    an earlier run of this name; what was made again later at the same place; what this run made again for
    another run, whose ledger names it; and evaluations on tasks that were made for them.

    Only manifests of artifacts that no run's ledger says it computed are read. An empty ledger is not judged.

    Args:
        entries: all lines of the ledger (`Run.recorded`).
    """
    if not entries:
        return None
    known = {entry.artifact_id for entry in entries} | RunStore(store.uri).computed_by_others(run.name)
    own = [manifest for manifest in _others(store, known) if manifest.run == run.name]
    # A process at work may have made and recorded more since the ledger was read.
    lost = _lost(own, run.recorded()) if _lost(own, entries) else []
    return Unrecorded(run, tuple(sorted(lost, key=lambda each: each.started_at))) if lost else None


def _lost(own: Sequence[Manifest], entries: Sequence[LedgerEntry]) -> list[Manifest]:
    """Those artifacts that were made from others of them, as far as nothing explains it."""
    known = {entry.artifact_id for entry in entries}
    unrecorded = {each.artifact_id: each for each in own if each.artifact_id not in known}
    begun = min(entry.recorded_at for entry in entries)
    last = {(entry.iteration, entry.stage): entry.recorded_at for entry in entries}
    return [
        manifest
        for manifest in unrecorded.values()
        if any(
            input_id in unrecorded and (unrecorded[input_id].kind, manifest.kind) != ("tasks", "evaluation")
            for input_id in manifest.inputs.values()
        )
        and max(begun, last.get((manifest.iteration, manifest.stage), begun)) < manifest.started_at
    ]


def _others(store: ArtifactStore, known: Collection[str]) -> Iterator[Manifest]:
    for stage in store.stages():
        for artifact_id in store.ids(stage):
            if artifact_id not in known:
                # A damaged artifact that no ledger names says nothing about this run.
                with suppress(DamagedArtifact):
                    manifest = store.find(artifact_id, stage)
                    if manifest is not None:
                        yield manifest
