"""What a store holds of one user of a served policy: records, rows, notes, and who learned from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.filesystem import list_names, open_root
from storage.lineage.graph import ArtifactGraph
from storage.lineage.learned_from import BranchPoint, Learner, branch_points, learners
from storage.lineage.rows import LineageRows
from storage.memory.chain import NO_TEXT, held_entries, read_chain
from storage.memory.entries import MEMORY
from storage.memory.forgetting import awaiting
from storage.memory.versions import latest_version
from storage.runs.run import RunStore
from storage.serving.aliases import AliasChange, current_aliases
from storage.serving.collected import SERVED_CORRECTIONS, SERVED_TRAJECTORIES, traffic_run
from storage.serving.rewriting import is_being_written
from storage.serving.traffic import EpisodeEnd, ReadTraffic, read_traffic, segments
from storage.serving.users import NamedUser, user_task_type
from storage.tables.parquet import TableFormat, scan_files
from storage.tables.scored import ALL_REDACTED, redacted_reason
from storage.tables.teacher_scores import TEACHER_SCORES
from storage.tables.training import SFT
from storage.tables.trajectories import TRAJECTORIES

REASON = "its user was forgotten"
"""What records of removed rows and of forgotten entries say."""


class Content(NamedTuple):
    """The columns of a table that say something, and what they hold once they say nothing any more.

    A finish reason becomes what a function makes of it.
    """

    table: TableFormat
    row_id: str
    silent: Mapping[str, Any]


CONTENTS = {
    content.table.name: content
    for content in (
        Content(
            TRAJECTORIES,
            "trajectory_id",
            {
                "prompt_token_ids": [],
                "response_token_ids": [],
                "response_mask": [],
                "behaviour_logprobs": [],
                "messages": "[]",
                "text": None,
                "feedback": "",
                "task_payload": "{}",
                "finish_reason": redacted_reason,
            },
        ),
        Content(SERVED_TRAJECTORIES, "trajectory_id", {"not_trainable": REASON}),
        Content(SERVED_CORRECTIONS, "feedback_id", {"text": ""}),
        Content(SFT, "sft_row_id", {"prompt": [], "completion": [], "input_token_ids": [], "loss_mask": []}),
        Content(
            TEACHER_SCORES,
            "trajectory_id",
            # The compared tokens are nearly the answer.
            {
                "not_scored": REASON,
                "logprobs": [],
                "advantages": [],
                "entropies": [],
                "support_ids": [],
                "support_logprobs": [],
                "tail_logprobs": [],
            },
        ),
        Content(
            MEMORY,
            "entry_id",
            # A vector tells of its text.
            {"text": NO_TEXT, "task_text": "", "feedback": "", "key_text": "", "vector": []},
        ),
    )
}


@dataclass(frozen=True)
class InSegment:
    """Records of the user in a segment of the log."""

    path: Path
    turns: int
    feedback: int
    being_written: bool


@dataclass(frozen=True)
class InFile:
    """Rows of the user in a Parquet file; `speaking` of them still say something."""

    manifest: Manifest
    file: str
    table: str
    ids: frozenset[str]
    speaking: int


@dataclass(frozen=True)
class UserTraces:
    """What a store holds of a user of a served run."""

    user: str
    segments: tuple[InSegment, ...]
    files: tuple[InFile, ...]
    held: Mapping[str, tuple[str, ...]]
    """Run -> entries of its newest memory that are to be forgotten."""
    shown_to_others: int
    """Rows of others whose prompts held a note of this user, such as one that was approved for everybody."""
    derived_entries: tuple[str, ...]
    """Memory entries of others that were written with such a note in the prompt."""
    learners: tuple[Learner, ...]
    branch_points: tuple[BranchPoint, ...]
    aliases: tuple[tuple[str, AliasChange], ...]
    """Served runs with an alias that means a checkpoint which learned from the user."""
    set_aside: int
    """Damaged artifacts that were set aside; nobody looks into them."""
    left_behind: int
    """Folders that killed processes left of artifacts; nobody looks into them, but deleting removes them."""

    @property
    def found(self) -> bool:
        """Whether there is something to delete."""
        return bool(self.segments or self.held or any(each.speaking for each in self.files))


def find_user(store_uri: str, run: str, user: NamedUser) -> UserTraces:
    """What the store holds of a user; changes nothing.

    Raises InputError for a store that is not local or an empty digest, DamagedRecord for a damaged log,
    DamagedArtifact for a damaged artifact.
    """
    if not user.digests:
        raise InputError("name the user: what nobody is named for belongs to nobody.")
    store, root = ArtifactStore(store_uri), open_root(store_uri)
    in_log = _in_log(store_uri, run, user)
    graph = ArtifactGraph(store.list())
    found = _Rows(store, graph, user)
    files = found.files()
    learned = learners(
        store,
        graph,
        found.trajectories,
        {each.manifest.artifact_id for each in files},
        {each.manifest.artifact_id: each.ids for each in files if each.table == TEACHER_SCORES.name},
    )
    touched = {each.manifest.artifact_id for each in learned}
    return UserTraces(
        user=user.digests[0],
        segments=tuple(in_log),
        files=tuple(files),
        held=_held(store, found.entries),
        shown_to_others=found.shown_to_others(),
        derived_entries=found.derived_entries(),
        learners=tuple(learned),
        branch_points=tuple(branch_points(graph, learned)),
        aliases=tuple(
            (served, change)
            for served in list_names(root, root.join("serving"))
            for change in current_aliases(store_uri, served).values()
            if change.checkpoint_id in touched
        ),
        set_aside=sum(
            len(list_names(root, root.join("damaged", stage)))
            for stage in list_names(root, root.join("damaged"))
        ),
        left_behind=len(store.left_behind()),
    )


def tenants(store_uri: str, run: str) -> set[str]:
    """The tenants of all records and rows of a served run; raises as `find_user`."""
    store, collected = ArtifactStore(store_uri), traffic_run(run)
    found = {record.tenant for record in read_traffic(segments(store_uri, run), ReadTraffic())}
    table = SERVED_TRAJECTORIES
    batches = (each for each in store.list() if each.run == collected)
    rows = scan_files(store.rows_paths(batches, table.name), table).select(pl.col("tenant").unique())
    return found | set(rows.collect()["tenant"])


def _in_log(store_uri: str, run: str, user: NamedUser) -> list[InSegment]:
    found = []
    for path in segments(store_uri, run):
        own = [
            record.type
            for record in read_traffic([path], ReadTraffic())
            if not isinstance(record, EpisodeEnd) and user.has(record.user, record.tenant)
        ]
        if own:
            turns = own.count("turn")
            found.append(InSegment(path, turns, len(own) - turns, is_being_written(path)))
    return found


@dataclass
class _Rows:
    """The rows of a user in the artifacts of a store."""

    store: ArtifactStore
    graph: ArtifactGraph
    user: NamedUser
    trajectories: frozenset[str] = field(init=False)
    """Served ones, and those that were made from them, such as reflections."""
    entries: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._rows = LineageRows(self.store, list(self.graph.manifests.values()))
        self.trajectories = self._with_followers(self._served())
        entries = self._rows.read("memory_entry", ["entry_id", "task_type", "source_trajectory_id"])
        # Notes under a digest of earlier versions may tell of users of several tenants: all of them go.
        own = pl.col("task_type").is_in(list(map(user_task_type, self.user.digests)))
        own |= _among("source_trajectory_id", self.trajectories)
        self.entries = frozenset(entries.filter(own)["entry_id"])

    def files(self) -> list[InFile]:
        """The files with rows of the user."""
        own = {
            TRAJECTORIES.name: _among("trajectory_id", self.trajectories),
            SERVED_TRAJECTORIES.name: self._is_served(),
            SERVED_CORRECTIONS.name: _among("trajectory_id", self.trajectories),
            # Also scores of others' tokens behind a text of the user.
            TEACHER_SCORES.name: pl.any_horizontal(
                _among(name, self.trajectories) for name in ("trajectory_id", "source_trajectory_id")
            ),
            MEMORY.name: _among("entry_id", self.entries),
            SFT.name: pl.any_horizontal(
                _among(name, self.trajectories)
                for name in ("trajectory_id", "reflection_trajectory_id", "first_trajectory_id")
            ),
        }
        found = []
        for table, condition in own.items():
            content = CONTENTS[table]
            for manifest in self.graph.manifests.values():
                for entry in manifest.tables(table):
                    artifact = self.store.open_found(manifest)
                    rows = scan_files([artifact.rows_path(entry.path)], content.table).filter(condition)
                    speaks = pl.any_horizontal(_speaks(content, name) for name in content.silent)
                    ids = rows.select(content.row_id, speaks=speaks).collect()
                    if ids.height:
                        named = frozenset(ids[content.row_id])
                        found.append(InFile(manifest, entry.path, table, named, int(ids["speaks"].sum())))
        return found

    def shown_to_others(self) -> int:
        """Rows of others whose prompts held an entry of the user."""
        rows = self._rows.read("trajectory", ["trajectory_id", "memory_entry_ids"])
        saw = pl.col("memory_entry_ids").list.eval(_among("", self.entries)).list.any()
        return rows.filter(saw & ~_among("trajectory_id", self.trajectories))["trajectory_id"].n_unique()

    def derived_entries(self) -> tuple[str, ...]:
        """Entries of others that were written with an entry of the user in the prompt."""
        rows = self._rows.read("memory_entry", ["entry_id", "parent_entry_ids"])
        derived = pl.col("parent_entry_ids").list.eval(_among("", self.entries)).list.any()
        return tuple(rows.filter(derived & ~_among("entry_id", self.entries))["entry_id"].unique().sort())

    def _served(self) -> set[str]:
        table = SERVED_TRAJECTORIES
        paths = self.store.rows_paths(self.graph.manifests.values(), table.name)
        rows = scan_files(paths, table).filter(self._is_served())
        return set(rows.select("trajectory_id").collect()["trajectory_id"])

    def _is_served(self) -> pl.Expr:
        return (pl.col("tenant") == self.user.tenant) & pl.col("user").is_in(self.user.digests)

    def _with_followers(self, ids: set[str]) -> frozenset[str]:
        links = self._rows.read("trajectory", ["trajectory_id", "parent_trajectory_id"])
        newest = set(ids)
        while newest:
            newest = set(links.filter(_among("parent_trajectory_id", newest))["trajectory_id"]) - ids
            ids |= newest
        return frozenset(ids)


def _among(column: str, ids: set[str] | frozenset[str]) -> pl.Expr:
    """Whether a column, or an element for an empty name, is one of these ids; false for null."""
    value = pl.col(column) if column else pl.element()
    return value.is_in(pl.Series(sorted(ids), dtype=pl.String).implode()).fill_null(False)


def _speaks(content: Content, column: str) -> pl.Expr:
    value, silent = pl.col(column), content.silent[column]
    if silent is redacted_reason:
        return ~value.is_in(ALL_REDACTED)
    if isinstance(silent, list):
        return (value.list.len() > 0).fill_null(False)
    return value.is_not_null() if silent is None else (value != silent).fill_null(False)


def _held(store: ArtifactStore, entries: frozenset[str]) -> dict[str, tuple[str, ...]]:
    """Run -> those entries that its newest memory holds, and that do not wait already to be forgotten."""
    found = {}
    for name in RunStore(store.uri).list() if entries else ():
        run = RunStore(store.uri).open(name)
        _, deltas = read_chain(store, latest_version(run))
        ids = held_entries(deltas).filter(_among("entry_id", entries)).select("entry_id").collect()
        waiting = awaiting(store, run)
        left = [each for each in ids["entry_id"] if each not in waiting]
        if left:
            found[name] = tuple(left)
    return found
