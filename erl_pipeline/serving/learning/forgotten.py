"""What learned from a user of a served policy before the user was forgotten: weights cannot unlearn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from erl_pipeline.serving.learning.collect import SealedBatch
from storage.artifacts.store import ArtifactStore
from storage.runs.documents import OfflineOrigin, read_origin
from storage.runs.run import RunStore
from storage.serving.collected import COLLECT_STAGE, traffic_run
from storage.serving.user_traces import REASON


def last_forgotten_of(store_uri: str, batches: Sequence[SealedBatch], last_night: int) -> int:
    """The last batch that a night may have trained on, and of which a user was forgotten; 0 for none."""
    store = ArtifactStore(store_uri)
    trained = [batch for batch in batches if batch.iteration <= last_night]
    return max((each.iteration for each in trained if _forgotten_at(store, each.trajectories_id)), default=0)


def learned_from_forgotten(store_uri: str, served: str, night: str) -> str:
    """Which batch the run `night` had trained on before a user was forgotten who is in it, in words; empty
    where there is none, and for a run that is no night of the run `served`.

    No file of an artifact is read but its records, so that it takes a moment.
    """
    origin = _origin_of_night(store_uri, served, night)
    if origin is None:
        return ""
    store, runs = ArtifactStore(store_uri), RunStore(store_uri)
    updated: dict[int, datetime] = {}
    for entry in runs.open(night).stages():
        if entry.kind == "checkpoint" and entry.iteration and (made := store.find(entry.artifact_id)):
            # An iteration may train several times: what the first has learned is in all.
            began = min(made.started_at, updated.get(entry.iteration, made.started_at))
            updated[entry.iteration] = began
    for entry in runs.open(origin.run).stages():
        if entry.stage != COLLECT_STAGE or entry.iteration is None:
            continue
        trained = updated.get(entry.iteration - origin.first_iteration + 1)
        forgotten = _forgotten_at(store, entry.artifact_id)
        if trained is not None and forgotten is not None and trained < forgotten:
            return (
                f"{night} had trained on iteration {entry.iteration} of {origin.run} before a user who is in "
                f"it was forgotten ({forgotten:%Y-%m-%d})"
            )
    return ""


def came_of_forgotten(store_uri: str, served: str, checkpoint_id: str) -> Iterator[str]:
    """The same for each night that a checkpoint came of, its own first."""
    store = ArtifactStore(store_uri)
    begun_from: str | None = checkpoint_id
    while begun_from is not None and (manifest := store.find(begun_from)) is not None:
        if told := learned_from_forgotten(store_uri, served, manifest.run):
            yield told
        origin = _origin_of_night(store_uri, served, manifest.run)
        begun_from = None if origin is None else origin.checkpoint_id


def _origin_of_night(store_uri: str, served: str, name: str) -> OfflineOrigin | None:
    origin = read_origin(store_uri, name) if name in RunStore(store_uri).list() else None
    return origin if isinstance(origin, OfflineOrigin) and origin.run == traffic_run(served) else None


def _forgotten_at(store: ArtifactStore, trajectories_id: str) -> datetime | None:
    """When a user was last forgotten who is in a batch; None if none was."""
    manifest = store.find(trajectories_id)
    found = () if manifest is None else store.pruned(manifest).files
    # A file that retention had pruned before is not marked as redacted.
    return max((file.pruned_at for file in found if file.redacted or file.reason == REASON), default=None)
