"""What waits to be trained: credits since the last batch, and the requests behind them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erl_pipeline.methods.complementary.artifacts import CALLS, CREDIT, CREDITS_FILE, MERGED
from erl_pipeline.stages.rollouts.generate_rollouts import TRAJECTORIES
from storage.artifacts.artifact import Artifact
from storage.artifacts.store import ArtifactStore

if TYPE_CHECKING:
    from storage.tables.trajectories import Trajectory

BATCHED = "requests_batched"
"""Counter of an artifact in the chain of credits: the requests of its batch."""


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


NOTHING = Batch((), 0, 0)


def read_credits(path: Path) -> list[dict[str, Any]]:
    """The rows of a table of credits."""
    from erl_pipeline.methods.complementary.tables import CREDITS
    from storage.tables.parquet import read_rows

    return list(read_rows([path], CREDITS))


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


def earlier_credits(store: ArtifactStore, before: Artifact | None) -> list[dict[str, Any]]:
    """The credits that wait since the last batch, the oldest first.

    Args:
        before: the end of the chain of credits.
    """
    tables: list[list[dict[str, Any]]] = []
    for artifact in _chain(store, before):
        if artifact.manifest.counters.get(BATCHED):
            break
        tables.append(read_credits(artifact.path(CREDITS_FILE)))
    return [row for table in reversed(tables) for row in table]


def requests_by_id(
    store: ArtifactStore,
    inputs: Mapping[str, Artifact],
    request_ids: Collection[str],
) -> dict[str, Trajectory]:
    """The answers of the extractor with these ids, from the newest on back until all are found.

    Args:
        inputs: of the next artifact in the chain of credits.
    """
    from storage.tables.trajectories import read_trajectories

    found: dict[str, Trajectory] = {}
    wanted = set(request_ids)
    for answers in _answers(store, inputs):
        if not wanted:
            break
        for row in read_trajectories([answers.path(TRAJECTORIES)]):
            if row.trajectory_id in wanted:
                found[row.trajectory_id] = row
                wanted.discard(row.trajectory_id)
    return found


def batch_rows(batch: Batch, requests: Mapping[str, Trajectory], artifact_id: str) -> list[Trajectory]:
    """The requests of a batch with what they were worth, one row for each sample; the parent of a row is the
    request.

    Args:
        artifact_id: of the artifact that will hold the rows.
    """
    from storage.tables.trajectories import trajectory_id

    return [
        replace(
            requests[sample.request_id],
            trajectory_id=trajectory_id(artifact_id, sample.request_id, number),
            parent_trajectory_id=sample.request_id,
            reward=sample.reward,
            success=sample.reward > 0,
        )
        for number, sample in enumerate(batch.samples)
    ]


def _answers(store: ArtifactStore, inputs: Mapping[str, Artifact]) -> Iterator[Artifact]:
    """What the extractor wrote on episodes and in merges, the newest first."""
    for name in (CALLS, MERGED):
        if name in inputs:
            yield inputs[name]
    for artifact in _chain(store, inputs.get(CREDIT)):
        named = artifact.manifest.inputs
        yield from (store.open(named[name]) for name in (CALLS, MERGED) if name in named)


def _chain(store: ArtifactStore, newest: Artifact | None) -> Iterator[Artifact]:
    """The artifacts of a chain of credits, the newest first."""
    artifact = newest
    while artifact is not None:
        yield artifact
        before = artifact.manifest.inputs.get(CREDIT)
        artifact = None if before is None else store.open(before)
