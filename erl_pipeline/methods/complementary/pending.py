"""What waits to be trained on: credits since the last batch, and the requests behind them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erl_pipeline.methods.complementary.settings import CALLS, CREDIT, CREDITS_FILE, MERGED
from erl_pipeline.stages.names import TRAJECTORIES
from storage.artifacts.artifact import Artifact
from storage.artifacts.store import ArtifactStore

if TYPE_CHECKING:
    from storage.tables.trajectories import Trajectory

BATCHED = "requests_batched"
"""Counter of an artifact in the chain of credits: how many requests its batch has."""


@dataclass(frozen=True)
class Sample:
    """A request with the mean credit of one entry that it wrote, or of all of them."""

    request_id: str
    reward: float


@dataclass(frozen=True)
class Batch:
    """The samples of an update, ordered by when their request was last credited, the earliest first.

    `waiting` requests had credit; `evicted` of them did not fit. Without samples there is no update yet.
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
    """The batch that `credits` give: no samples from fewer than `size` requests, else those of the `size`
    requests that were credited last.

    Args:
        per: `entry`: a sample for each entry. `request`: one for each request, with the mean of all its
            credits.
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
    """The credits since the last batch, the oldest first.

    Args:
        before: the newest artifact in the chain of credits.
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
    """The answers of the extractor with these ids, searched from the newest backwards until all are found.

    Args:
        inputs: the inputs of the next artifact in the chain of credits.
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
    """The requests of a batch with their rewards, one row for each sample; the parent of a row is the
    request.

    Args:
        artifact_id: id of the artifact that will hold the rows.
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
    """The artifacts with the extractor's answers on episodes and in merges, the newest first."""
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
