"""Forgetting a user of a served policy.

Rows of the user stay as rows: their ids, numbers and links are what lineage is made of. What they say goes:
messages, tokens, feedback, notes. Checkpoints that learned from them cannot unlearn, so they are named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from storage.artifacts.store import ArtifactStore
from storage.errors import RunBusy
from storage.filesystem import open_root
from storage.lineage.graph import START, ArtifactGraph
from storage.memory.entries import MEMORY
from storage.memory.forgetting import forget_all
from storage.memory.index import MemoryIndex, index_folder, tables_in
from storage.runs.locks import lock_collection
from storage.runs.run import RunStore
from storage.serving.rewriting import half_rewritten, is_being_written, rewrite_segment
from storage.serving.traffic import Feedback, ReadTraffic, Record, ServedTurn, read_traffic, segments
from storage.serving.user_traces import CONTENTS, REASON, Content, InFile, UserTraces, find_user
from storage.serving.users import NamedUser


def forget_user(store_uri: str, run: str, user: NamedUser) -> UserTraces:
    """Delete what `find_user` finds, all but ids and numbers of rows and checkpoints; returns what it found,
    with all that has learned from the user until then.

    A kill at any moment leaves whole files, and the next call goes on.

    Raises RunBusy while a server writes to a segment with records of the user, or while a run of the store is
    worked on; then nothing is changed, or notes alone where it began meanwhile. Else what `find_user` raises.
    """
    store, root, runs = ArtifactStore(store_uri), open_root(store_uri), RunStore(store_uri)
    before = find_user(store_uri, run, user)
    for segment in before.segments:
        if segment.being_written:
            raise _is_busy(segment.path)
    with lock_collection(root, runs.list):
        pass  # Nothing is begun while a run is worked on.
    for name, entry_ids in before.held.items():
        if entry_ids:
            forget_all(store, runs.open(name), entry_ids, REASON)
    with lock_collection(root, runs.list):
        now = find_user(store_uri, run, user)
        # A killed `collect` may have copied conversations.
        store.remove_left_behind()
        _rewrite_log(store_uri, run, user)
        # A table never differs from its artifacts, so it goes before they change. A reader may make it again
        # in between.
        _drop_memory_tables(store, runs, now.files)
        for artifact_id, changes in _changes(now.files).items():
            store.redact(artifact_id, changes, REASON)
        _drop_memory_tables(store, runs, now.files)
    return replace(before, learners=now.learners, branch_points=now.branch_points, aliases=now.aliases)


def _is_busy(segment: Path) -> RunBusy:
    return RunBusy(
        f"a server is writing to {segment}, which has records of this user. Stop that server, then run the "
        "same command again."
    )


def _rewrite_log(store_uri: str, run: str, user: NamedUser) -> None:
    """Take the user's records out of the log, and records that a kill cut short: they may be the user's."""
    for path in half_rewritten(store_uri, run):
        path.unlink()
    paths = segments(store_uri, run)
    own: set[tuple[str, str]] = set()
    shared: set[tuple[str, str]] = set()

    def is_own(record: ServedTurn | Feedback) -> bool:
        return user.has(record.user, record.tenant)

    for path in paths:
        for record in read_traffic([path], ReadTraffic()):
            if isinstance(record, ServedTurn | Feedback) and is_own(record) and is_being_written(path):
                raise _is_busy(path)  # It began after the user was looked for.
            if isinstance(record, ServedTurn):
                (own if is_own(record) else shared).add((record.tenant, record.episode_id))

    def keeps(record: Record) -> bool:
        if isinstance(record, ServedTurn | Feedback):
            return not is_own(record)
        return (record.tenant, record.episode_id) not in own - shared

    for path in paths:
        counts = ReadTraffic()
        # A segment that a server writes had nothing of the user above, or this would have ended there.
        if is_being_written(path) or (all(map(keeps, read_traffic([path], counts))) and not counts.torn):
            continue
        rewrite_segment(path, keeps)


def _changes(files: Sequence[InFile]) -> dict[str, dict[str, Any]]:
    """Artifact id -> file -> change, for `ArtifactStore.redact`; also for artifacts of which nothing is left
    to change, since a kill may have left old bytes."""
    changes: dict[str, dict[str, Any]] = {}
    for each in files:
        of_artifact = changes.setdefault(each.manifest.artifact_id, {})
        if each.speaking:
            of_artifact[each.file] = partial(_silenced, content=CONTENTS[each.table], ids=each.ids)
    return changes


def _silenced(rows: pa.Table, content: Content, ids: frozenset[str]) -> pa.Table:
    """The rows, of which those with these ids say nothing."""
    own = pc.is_in(rows.column(content.row_id), pa.array(sorted(ids), pa.string()))
    for place, column in enumerate(rows.schema):
        if column.name in content.silent:
            silent, before = content.silent[column.name], rows.column(column.name)
            if callable(silent):
                after = pa.array(map(silent, before.to_pylist()), column.type)
            else:
                after = pa.scalar(silent, column.type)
            rows = rows.set_column(place, column, pc.if_else(own, after, before))
    return rows


def _drop_memory_tables(store: ArtifactStore, runs: RunStore, files: Sequence[InFile]) -> None:
    """Remove the tables, with all their versions, of memories that had entries of the user; they are made
    again from the artifacts when they are searched. A table of no run may have been one of them."""
    added = {each.manifest.artifact_id for each in files if each.table == MEMORY.name}
    versions = ArtifactGraph(store.list()).descendants(dict.fromkeys(added, START)) if added else {}
    known = set(runs.list())
    for name in tables_in(store.uri) if versions else ():
        entries = runs.open(name).recorded() if name in known else None
        if entries is None or any(entry.artifact_id in versions for entry in entries):
            MemoryIndex(index_folder(store.uri, name), store).discard()
