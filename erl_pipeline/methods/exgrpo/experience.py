"""Versions of what can be replayed: each artifact holds what an iteration added, and names the previous one.

`groups.parquet` has a row for each group of attempts that was stored, `members.parquet` one for each attempt.
Tokens stay in the rollouts; members say where.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from storage.artifacts.artifact import Artifact
from storage.artifacts.store import ArtifactStore
from storage.tables.parquet import TableFormat, scan_files, write_rows

if TYPE_CHECKING:
    from erl_pipeline.plan.stage import Resources


PARENT = "experience"
"""Name of the input by which an artifact of experience names the previous one."""

GROUPS_FILE, MEMBERS_FILE = "experience/groups.parquet", "experience/members.parquet"

ACTIVE, RETIRED = "active", "retired"

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

    def trainer_logprobs(self, trajectory_ids: Iterable[str]) -> dict[str, tuple[float, ...] | None]:
        """Member id -> the log-probabilities that the trainer computed when it was stored, in nats; None
        where it computed none."""
        wanted = pl.Series(list(trajectory_ids), dtype=pl.String)
        found = scan_files(self.member_files, MEMBERS).filter(pl.col("trajectory_id").is_in(wanted.implode()))
        rows = found.select("trajectory_id", _LOGPROBS).collect().iter_rows()
        return {row_id: None if values is None else tuple(values) for row_id, values in rows}


def read_experience(
    store: ArtifactStore, version: str | None, known: Mapping[str, Experience] | None = None
) -> Experience:
    """A version with all that came before it; an empty one for None.

    Args:
        known: versions that were read before; their files are not read again.
    """
    deltas = []
    base = Experience()
    while version is not None:
        if known is not None and version in known:
            base = known[version]
            break
        artifact = store.open(version)
        deltas.append(artifact)
        version = artifact.manifest.inputs.get(PARENT)
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
        bool(deltas[-1].manifest.counters["begun"]),
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
