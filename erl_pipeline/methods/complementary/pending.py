"""What waits to be trained: credits since the extractor's last update, and the requests behind them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from erl_pipeline.methods.complementary.artifacts import CALLS, CREDIT, CREDITS_FILE, MERGED
from erl_pipeline.methods.complementary.credit import read_credits
from erl_pipeline.policies.checkpoints import CHECKPOINT
from erl_pipeline.stages.rollouts import TRAJECTORIES
from storage.artifacts.artifact import Artifact
from storage.artifacts.store import ArtifactStore
from storage.errors import StoreError

if TYPE_CHECKING:
    from storage.tables.trajectories import Trajectory

STEPS = "optimizer_steps"
"""Counter of a checkpoint: the steps that its update took."""


@dataclass(frozen=True)
class Sample:
    """A request with the mean credit of what it wrote: an entry of it, or all of them."""

    request_id: str
    reward: float


@dataclass(frozen=True)
class Batch:
    """The samples of an update, those of the request that was credited longest ago first.

    `waiting` requests had credit, of which `evicted` had no room. Without samples it is no update yet.
    """

    samples: tuple[Sample, ...]
    waiting: int
    evicted: int


def gather(credits: Sequence[Mapping[str, Any]], size: int, per: str) -> Batch:
    """The batch that credits, in their order, give: nothing of fewer than `size` requests, else the `size`
    that were credited last.

    Args:
        per: `entry`: each entry is a sample. `request`: each request is, with the mean over all its credits.
    """
    last = {row["request_id"]: place for place, row in enumerate(credits)}
    order = sorted(last, key=lambda request_id: last[request_id])
    if len(order) < size:
        return Batch((), len(order), 0)
    rewards: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for row in credits:
        rewards[row["request_id"], row["entry_id"] if per == "entry" else ""].append(row["reward"])
    samples = [
        Sample(request_id, math.fsum(found) / len(found))
        for request_id in order[-size:]
        for (owner, _), found in rewards.items()
        if owner == request_id
    ]
    return Batch(tuple(samples), len(order), len(order) - size)


def batch_advantages(rewards: Sequence[float]) -> list[float]:
    """Rewards less their mean over the batch; not divided by anything (arXiv 2603.17621, section 3.3)."""
    mean = math.fsum(rewards) / len(rewards) if rewards else 0.0
    return [reward - mean for reward in rewards]


def pending_credits(store: ArtifactStore, newest: Artifact, extractor: Artifact) -> list[dict[str, Any]]:
    """The credits since the extractor was last trained, the oldest first.

    Args:
        newest: the end of the chain of credits.
        extractor: its newest checkpoint; those that were carried over are passed by.
    """
    trained_with = _last_trained_with(store, extractor)
    tables: list[list[dict[str, Any]]] = []
    for artifact in _chain(store, newest):
        if artifact.manifest.artifact_id == trained_with:
            break
        tables.append(read_credits(artifact.path(CREDITS_FILE)))
    return [row for table in reversed(tables) for row in table]


def requests_by_id(
    store: ArtifactStore, newest: Artifact, request_ids: Collection[str]
) -> dict[str, Trajectory]:
    """The answers of the extractor with these ids, from the newest on back until all are found."""
    from storage.tables.trajectories import read_trajectories

    found: dict[str, Trajectory] = {}
    wanted = set(request_ids)
    for artifact in _chain(store, newest):
        for name in (CALLS, MERGED):
            if wanted and name in artifact.manifest.inputs:
                answers = store.open(artifact.manifest.inputs[name])
                for row in read_trajectories([answers.path(TRAJECTORIES)]):
                    if row.trajectory_id in wanted:
                        found[row.trajectory_id] = row
                        wanted.discard(row.trajectory_id)
        if not wanted:
            break
    return found


def _chain(store: ArtifactStore, newest: Artifact) -> Iterator[Artifact]:
    """The artifacts of a chain of credits, the newest first."""
    artifact: Artifact | None = newest
    while artifact is not None:
        yield artifact
        before = artifact.manifest.inputs.get(CREDIT)
        artifact = None if before is None else store.open(before)


def _last_trained_with(store: ArtifactStore, checkpoint: Artifact) -> str | None:
    """The end of the chain of credits when the extractor was last trained; None where it never was."""
    manifest = checkpoint.manifest
    while CREDIT in manifest.inputs:
        if manifest.counters.get(STEPS):
            return manifest.inputs[CREDIT]
        before = manifest.inputs[CHECKPOINT]
        found = store.find(before)
        if found is None:
            raise StoreError(
                f"checkpoint {before}, which extractor {manifest.artifact_id} came from, is not in the "
                "store, so that what it was trained on cannot be told"
            )
        manifest = found
    return None
