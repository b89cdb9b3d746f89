"""What learned from a user of a served policy before the user was forgotten: weights cannot unlearn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from erl_pipeline.serving.learning.collect import SealedBatch
from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.serving.collected import COLLECT_STAGE, may_be_traffic_run
from storage.serving.user_traces import REASON


def last_forgotten_of(store_uri: str, batches: Sequence[SealedBatch], last_night: int) -> int:
    """The last batch that a night may have trained on, and of which a user was forgotten; 0 for none."""
    store = ArtifactStore(store_uri)
    trained = [batch for batch in batches if batch.iteration <= last_night]
    return max((each.iteration for each in trained if _forgotten_at(store, each.trajectories_id)), default=0)


def learned_from_forgotten(store_uri: str, checkpoint_id: str, since: str | None = None) -> Iterator[str]:
    """For each batch of served conversations, a checkpoint that had trained on it before a user was forgotten
    who is in it, in words: this one or one that it was trained from, back to `since`, which no longer counts;
    None: to the first.

    Of artifacts only records are read, and nothing is asked of runs, which may have been removed.
    """
    store = ArtifactStore(store_uri)
    seen: set[str] = set()
    # What several have read is said of the first: later ones may have read it without the user.
    for trained in sorted(_trained(store, checkpoint_id, since), key=lambda each: each.started_at):
        waiting = list(trained.inputs.values())
        while waiting:
            artifact_id = waiting.pop()
            manifest = None if artifact_id in seen else store.find(artifact_id)
            seen.add(artifact_id)
            if manifest is None or manifest.kind == "checkpoint":
                continue
            # What a run has sampled itself has many shards.
            if manifest.kind == "rollouts" and not may_be_traffic_run(manifest.run):
                continue
            if manifest.stage == COLLECT_STAGE:
                forgotten = _forgotten_at(store, artifact_id)
                if forgotten is not None and trained.started_at < forgotten:
                    yield (
                        f"{trained.artifact_id[:12]} (run {trained.run}) had trained on iteration "
                        f"{manifest.iteration} of {manifest.run} before a user who is in it was forgotten "
                        f"({forgotten:%Y-%m-%d})"
                    )
            waiting += manifest.inputs.values()


def _trained(store: ArtifactStore, checkpoint_id: str, since: str | None) -> Iterable[Manifest]:
    """A checkpoint and those that it was trained from."""
    found: dict[str, Manifest] = {}
    waiting = [checkpoint_id]
    while waiting:
        artifact_id = waiting.pop()
        manifest = None if artifact_id == since or artifact_id in found else store.find(artifact_id)
        if manifest is not None and manifest.kind == "checkpoint":
            found[artifact_id] = manifest
            waiting += manifest.inputs.values()
    return found.values()


def _forgotten_at(store: ArtifactStore, trajectories_id: str) -> datetime | None:
    """When a user was last forgotten who is in a batch; None if none was."""
    manifest = store.find(trajectories_id)
    found = () if manifest is None else store.pruned(manifest).files
    # A file that retention had pruned before is not marked as redacted.
    return max((file.pruned_at for file in found if file.redacted or file.reason == REASON), default=None)
