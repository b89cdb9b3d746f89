"""What can be replayed: versions of it, and stored attempts, read from the rollouts that hold them. Each
artifact of experience holds what an iteration added, and names the previous one.

`groups.parquet` has a row for each group of attempts that was stored, `members.parquet` one for each attempt.
Tokens stay in the rollouts; members say where.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from erl_pipeline.config.replay import ACTIVE, EXPERIENCE, RETIRED
from erl_pipeline.environments.interface import Task
from erl_pipeline.episodes.context import task_payload
from erl_pipeline.plan.stage import Resources
from erl_pipeline.stages.names import trajectory_files
from erl_pipeline.stages.training.replay.replayed import BEGUN
from storage.artifacts.artifact import Artifact
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.tables.parquet import TableFormat, scan_files, write_rows
from storage.tables.trajectories import Trajectory, scan_trajectories

GROUPS_FILE, MEMBERS_FILE = "experience/groups.parquet", "experience/members.parquet"

GROUPS = TableFormat(
    name="experience_groups",
    version=1,
    schema=pa.schema(
        [
            pa.field("task_id", pa.string(), nullable=False),  # the task of the group
            pa.field("iteration", pa.int32(), nullable=False),  # the one that sampled it
            pa.field("policy_version", pa.string(), nullable=False),
            pa.field("group_size", pa.int32(), nullable=False),  # attempts, fresh and replayed
            pa.field("fresh", pa.int32(), nullable=False),  # attempts sampled in the iteration
            pa.field("replayed", pa.int32(), nullable=False),  # stored attempts beside them
            pa.field("successes", pa.int32(), nullable=False),  # of all of them
            pa.field("status", pa.string(), nullable=False),  # `active`, or `retired`: solved each time
        ]
    ),
    dictionary=("policy_version", "status"),
)
MEMBERS = TableFormat(
    name="experience_members",
    version=1,
    schema=pa.schema(
        [
            pa.field("task_id", pa.string(), nullable=False),  # the task of the group
            pa.field("trajectory_id", pa.string(), nullable=False),  # the stored attempt
            pa.field("rollouts_id", pa.string(), nullable=False),  # the artifact of its iteration's rollouts
            pa.field("iteration", pa.int32(), nullable=False),  # the one that sampled it
            pa.field("response_digest", pa.int64(), nullable=False),  # equal for equal prompts and responses
            pa.field("quality", pa.float32()),  # with sampler `tiers`
            pa.field("tier", pa.int8()),  # with sampler `tiers`
            pa.field("trainer_logprobs", pa.list_(pa.float32())),  # under the policy named next, nats
            pa.field("logprob_policy_version", pa.string()),  # null where none were computed
        ]
    ),
    dictionary=("task_id", "rollouts_id", "logprob_policy_version"),
    float_lists=("trainer_logprobs.list.element",),
)
_LOGPROBS = "trainer_logprobs"
_HELD = [
    name for name in MEMBERS.schema.names if name not in ("quality", _LOGPROBS, "logprob_policy_version")
]


@dataclass(frozen=True)
class Experience:
    """One version, in memory; rows of both tables in the order in which they were stored.

    `groups` has all columns, `members` those that selecting needs.
    """

    groups: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=pl.Schema(GROUPS.schema)))
    members: pl.DataFrame = field(
        default_factory=lambda: pl.DataFrame(schema=pl.Schema(MEMBERS.schema)).select(_HELD)
    )
    member_files: tuple[Path, ...] = ()
    begun: bool = False
    """Whether anything is stored yet: see `ReplayConfig.start_success`."""

    def latest_groups(self) -> pl.DataFrame:
        """The newest group of each task, those of retired tasks left out."""
        newest = self.groups.group_by("task_id", maintain_order=True).last()
        return newest.filter(pl.col("status") == ACTIVE)

    def retired(self) -> set[str]:
        """Tasks that are no longer replayed."""
        return set(self.groups.filter(pl.col("status") == RETIRED)["task_id"])

    def followed_by(self, groups: pl.DataFrame, members: pl.DataFrame, *, begun: bool) -> Experience:
        """The next version, whose own files are not written yet."""
        return Experience(
            pl.concat([self.groups, groups]),
            pl.concat([self.members, members.select(_HELD)]),
            self.member_files,
            begun,
        )

    def qualities(self, trajectory_ids: Iterable[str]) -> dict[str, float]:
        """Member id -> the quality with which it was stored, with sampler `tiers`."""
        return dict(self._stored(trajectory_ids, "quality"))

    def trainer_logprobs(self, trajectory_ids: Iterable[str]) -> dict[str, tuple[float, ...] | None]:
        """Member id -> the log-probabilities that the trainer computed when it was stored, in nats; None
        where it computed none."""
        rows = self._stored(trajectory_ids, _LOGPROBS)
        return {row_id: None if values is None else tuple(values) for row_id, values in rows}

    def _stored(self, trajectory_ids: Iterable[str], column: str) -> Iterator[tuple[str, Any]]:
        wanted = pl.Series(list(trajectory_ids), dtype=pl.String)
        found = scan_files(self.member_files, MEMBERS).filter(pl.col("trajectory_id").is_in(wanted.implode()))
        return found.select("trajectory_id", column).collect().iter_rows()


def read_experience(
    store: ArtifactStore, version: str | None, known: Mapping[str, Experience] | None = None
) -> Experience:
    """A version with all that came before it; an empty one for None. `known`: versions that were read before;
    their files are not read again."""
    deltas = []
    base = Experience()
    while version is not None:
        if known is not None and version in known:
            base = known[version]
            break
        artifact = store.open(version)
        deltas.append(artifact)
        version = artifact.manifest.inputs.get(EXPERIENCE)
    if not deltas:
        return base
    deltas.reverse()
    group_files = [each.path(GROUPS_FILE) for each in deltas]
    member_files = [each.path(MEMBERS_FILE) for each in deltas]
    groups, members = pl.collect_all(
        [scan_files(group_files, GROUPS), scan_files(member_files, MEMBERS).select(_HELD)]
    )
    return Experience(
        pl.concat([base.groups, groups]),
        pl.concat([base.members, members]),
        (*base.member_files, *member_files),
        bool(deltas[-1].manifest.counters[BEGUN]),
    )


def write_experience(
    folder: Path, groups: Iterable[Mapping[str, Any]], members: Iterable[Mapping[str, Any]]
) -> dict[str, int]:
    """Write what an iteration adds; returns the number of rows of each file."""
    (folder / GROUPS_FILE).parent.mkdir()
    return {
        GROUPS_FILE: write_rows(folder / GROUPS_FILE, groups, GROUPS),
        MEMBERS_FILE: write_rows(folder / MEMBERS_FILE, members, MEMBERS),
    }


def kept_experience(resources: Resources, artifact: Artifact | None) -> Experience:
    """The experience of an artifact, with all that came before it; an empty one for None."""
    if artifact is None:
        return Experience()
    known: dict[str, Experience] = resources.keep("experience", dict)
    version = artifact.manifest.artifact_id
    with resources.store.staying():  # The experience keeps the paths of files.
        found = read_experience(resources.store, version, known)
    known.clear()
    known[version] = found
    return found


@dataclass(frozen=True)
class Candidate:
    """A stored attempt, and the id of the rollouts that it comes from."""

    row: Trajectory
    rollouts_id: str


def read_candidates(store: ArtifactStore, members: pl.DataFrame) -> list[Candidate]:
    """The stored attempts of `members`, in their order. Raises InputError for one that is gone."""
    rollouts = dict(members.select("trajectory_id", "rollouts_id").iter_rows())
    files = [
        path
        for rollouts_id in dict.fromkeys(rollouts.values())
        for path in trajectory_files(store.open(rollouts_id), store)
    ]
    wanted = pl.Series(list(rollouts), dtype=pl.String)
    found = scan_trajectories(files).filter(pl.col("trajectory_id").is_in(wanted.implode())).collect()
    rows = {row["trajectory_id"]: _trajectory(row) for row in found.iter_rows(named=True)}
    for row_id, rollouts_id in rollouts.items():
        if row_id not in rows:
            raise InputError(f"trajectory {row_id} is to be replayed, but is not in rollouts {rollouts_id}")
    return [Candidate(rows[row_id], rollouts_id) for row_id, rollouts_id in rollouts.items()]


def _trajectory(row: Mapping[str, object]) -> Trajectory:
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    return Trajectory(**values)  # type: ignore[arg-type]


def with_trainer_logprobs(
    candidates: Sequence[Candidate], logprobs: Mapping[str, tuple[float, ...] | None]
) -> list[Candidate]:
    """The same candidates, with the trainer's log-probabilities in place of the sampler's.

    Raises InputError for an attempt that has none.
    """
    found = []
    for candidate in candidates:
        own = logprobs.get(candidate.row.trajectory_id)
        if own is None:
            raise InputError(
                f"trajectory {candidate.row.trajectory_id} of iteration {candidate.row.iteration} was stored "
                "without log-probabilities of the trainer, and replay.importance: trainer needs them; "
                "set it to behaviour, as it was when the attempt was stored"
            )
        found.append(replace(candidate, row=replace(candidate.row, behaviour_logprobs=own)))
    return found


def with_quality_as_reward(
    candidates: Sequence[Candidate], qualities: Mapping[str, float]
) -> list[Candidate]:
    """The same candidates, with their quality in place of their reward."""
    return [
        replace(each, row=replace(each.row, reward=qualities[each.row.trajectory_id], turn_rewards=None))
        for each in candidates
    ]


def require_trainable(
    candidates: Sequence[Candidate], training: Collection[str], held_out: Sequence[Task]
) -> None:
    """Raise InputError, which names it, for a stored attempt at a task that is held out or is not a training
    task. Also for one whose log-probabilities cannot be those of sampled tokens. `training`: ids of the
    training tasks.
    """
    held_out_ids = {task.task_id for task in held_out}
    payloads = {task_payload(task) for task in held_out}
    for row in (candidate.row for candidate in candidates):
        name = f"trajectory {row.trajectory_id} of iteration {row.iteration}"
        if row.task_id in held_out_ids or row.task_payload in payloads:
            raise InputError(
                f"{name} is of task {row.task_id}, which is held out (evaluation.tasks); "
                "it cannot be replayed"
            )
        if row.task_id not in training:
            raise InputError(f"{name} is of task {row.task_id}, which is no training task of this run")
        sampled = [
            logprob for logprob, bit in zip(row.behaviour_logprobs, row.response_mask, strict=True) if bit
        ]
        if row.temperature <= 0 or not all(map(math.isfinite, sampled)):
            raise InputError(
                f"{name} has no log-probabilities of sampled tokens (temperature {row.temperature:g}), which "
                "replay needs"
            )
