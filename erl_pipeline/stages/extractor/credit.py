"""The stage that gives entries their credit: the outcome of each attempt that they guided.

The reward of an entry is that of arXiv 2603.17621, section 3.3: +1 for each attempt with it that succeeded,
-1 for each that failed. The mean reward of the free attempts at the same task is recorded too, for readers
only: the paper found it to be a worse baseline.

The artifacts of this stage form a chain. Each names the previous one, the extractor's answers in its
iteration, and the answers of a merge since then, so that any earlier request can be found. Once enough
requests have credit, an artifact also holds the batch of them that the extractor is trained on.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from erl_pipeline.config.base import Settings
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.stages.extractor.names import CALLS, CREDIT, CREDITS_FILE, MERGED
from erl_pipeline.stages.memory import seen_entries
from erl_pipeline.stages.names import ROLLOUTS, TRAJECTORIES, chain, trajectory_files
from storage.artifacts.artifact import Artifact
from storage.artifacts.store import ArtifactStore
from storage.tables.scored import scored

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
class CreditBatch:
    """The samples of an update, ordered by when their request was last credited, the earliest first.

    `waiting` requests had credit; `evicted` of them did not fit. Without samples there is no update yet.
    """

    samples: tuple[Sample, ...]
    waiting: int
    evicted: int


NOTHING = CreditBatch((), 0, 0)


def gather(credits: Sequence[Mapping[str, Any]], size: int, per: str) -> CreditBatch:
    """The batch that `credits` give: no samples from fewer than `size` requests, else those of the `size`
    requests that were credited last. `per`: `entry`: a sample for each entry. `request`: one for each
    request, with the mean of all its credits."""
    last = {row["request_id"]: place for place, row in enumerate(credits)}
    order = sorted(last, key=lambda request_id: last[request_id])
    if len(order) < size:
        return CreditBatch((), len(order), 0)
    rewards: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for row in credits:
        rewards[row["request_id"], row["entry_id"] if per == "entry" else ""].append(row["reward"])
    samples = [
        Sample(request_id, math.fsum(found) / len(found))
        for request_id in order[-size:]
        for (owner, _), found in rewards.items()
        if owner == request_id
    ]
    return CreditBatch(tuple(samples), len(order), len(order) - size)


def earlier_credits(store: ArtifactStore, before: Artifact | None) -> list[dict[str, Any]]:
    """The credits since the last batch, the oldest first. `before`: the newest artifact in the chain of
    credits."""
    from erl_pipeline.stages.extractor.tables import CREDITS
    from storage.tables.parquet import read_rows

    files: list[Path] = []
    for artifact in chain(store, before, CREDIT):
        if artifact.manifest.counters.get(BATCHED):
            break
        files.append(artifact.path(CREDITS_FILE))
    return list(read_rows(files[::-1], CREDITS))


def requests_by_id(
    store: ArtifactStore,
    inputs: Mapping[str, Artifact],
    request_ids: Collection[str],
) -> dict[str, Trajectory]:
    """The answers of the extractor with these ids, searched from the newest backwards until all are found.
    `inputs`: the inputs of the next artifact in the chain of credits."""
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


def batch_rows(batch: CreditBatch, requests: Mapping[str, Trajectory], artifact_id: str) -> list[Trajectory]:
    """The requests of a batch with their rewards, one row for each sample; the parent of a row is the
    request. `artifact_id`: id of the artifact that will hold the rows."""
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
    for artifact in chain(store, inputs.get(CREDIT), CREDIT):
        named = artifact.manifest.inputs
        yield from (store.open(named[name]) for name in (CALLS, MERGED) if name in named)


class CreditSettings(Settings):
    """What credits depend on, besides the attempts and the memory that these saw."""

    embedding_model: str
    """The embedding model of that memory."""
    batch: int | None
    """Requests that an update of the extractor takes; None where it is never trained."""
    credit_per: Literal["entry", "request"]


def credit_rows(
    trajectories: Sequence[Trajectory], requests: Mapping[str, str]
) -> Iterator[Mapping[str, Any]]:
    """A row for each entry in the prompt of an attempt that was scored, in the order of the attempts.
    `requests`: entry id -> the request that wrote it. Entries without one get no credit."""
    from storage.tables.trajectories import FREE

    attempts = scored(trajectories)
    free: defaultdict[str, list[float]] = defaultdict(list)
    for row in attempts:
        if row.subgroup == FREE:
            free[row.group_id].append(row.reward)
    for row in attempts:
        others = free.get(row.group_id)
        for entry_id in row.memory_entry_ids:
            if entry_id in requests:
                yield {
                    "entry_id": entry_id,
                    "request_id": requests[entry_id],
                    "trajectory_id": row.trajectory_id,
                    "iteration": row.iteration,
                    "policy_version": row.policy_version,
                    "reward": 1.0 if row.success else -1.0,
                    "free_mean": math.fsum(others) / len(others) if others else None,
                }


def retrieval_entropy(entry_ids: Sequence[str]) -> float:
    """Entropy, in nats, of how often each entry was shown."""
    counts = Counter(entry_ids).values()
    total = sum(counts)
    return -math.fsum(n / total * math.log(n / total) for n in counts)


def halves(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Success rates of guided and of free attempts that were scored, and their difference. An empty half has
    no rate, and then there is no difference."""
    from storage.tables.trajectories import FREE, GUIDED

    rates = {}
    for half in (GUIDED, FREE):
        outcomes = [row.success for row in scored(trajectories) if row.subgroup == half]
        if outcomes:
            rates[f"success_{half}"] = sum(outcomes) / len(outcomes)
    if len(rates) == 2:
        rates["guided_minus_free"] = rates[f"success_{GUIDED}"] - rates[f"success_{FREE}"]
    return rates


def _compute(call: StageCall[CreditSettings]) -> StageResult:
    """Write the credits of an iteration and, where enough requests wait, the batch that the extractor is
    to be trained on."""
    from erl_pipeline.stages.extractor.tables import CREDITS
    from storage.tables.parquet import write_rows
    from storage.tables.trajectories import read_trajectories, write_trajectories

    settings, store = call.settings, call.resources.store
    rows = read_trajectories(trajectory_files(call.inputs[ROLLOUTS], store))
    found = list(credit_rows(rows, _requests(call, rows)))
    write_rows(call.folder / CREDITS_FILE, found, CREDITS)
    batch = NOTHING
    if settings.batch is not None:
        waiting = [*earlier_credits(store, call.inputs.get(CREDIT)), *found]
        batch = gather(waiting, settings.batch, settings.credit_per)
    wanted = {sample.request_id for sample in batch.samples}
    batched = batch_rows(batch, requests_by_id(store, call.inputs, wanted), call.artifact_id)
    write_trajectories(call.folder / TRAJECTORIES, batched)
    metrics = halves(rows)
    if found:
        metrics["credit_mean"] = math.fsum(each["reward"] for each in found) / len(found)
        metrics["retrieval_entropy"] = retrieval_entropy([each["entry_id"] for each in found])
    return StageResult(
        counters={
            "credits": len(found),
            "credited_entries": len({each["entry_id"] for each in found}),
            "credited_requests": len({each["request_id"] for each in found}),
            "requests_waiting": batch.waiting,
            "requests_evicted": batch.evicted,
            BATCHED: len(wanted),
        },
        metrics=metrics,
        rows={CREDITS_FILE: len(found), TRAJECTORIES: len(batched)},
    )


def _requests(call: StageCall[CreditSettings], rows: Sequence[Trajectory]) -> dict[str, str]:
    """Entry id -> the request that wrote it, for each entry that the attempts saw."""
    entries = seen_entries(call, call.settings.embedding_model, rows)
    return {
        entry_id: entry.source_trajectory_id
        for entry_id, entry in entries.items()
        if entry.source_trajectory_id is not None
    }


CREDIT_EXPERIENCE = Stage(
    name="credit_experience",
    version=3,
    output="table",
    settings=CreditSettings,
    compute=_compute,
)
