"""The stage that adds an iteration's successful reflections to the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from erl_pipeline.config.base import Settings
from erl_pipeline.config.memory import KeepSettings
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.stages.rollouts import trajectory_files

if TYPE_CHECKING:
    from storage.memory.entries import MemoryEntry
    from storage.tables.trajectories import Trajectory


class IndexSettings(Settings):
    """What a memory keeps, and which texts it is made of."""

    keep: KeepSettings
    text_role: str
    """Role of the trajectories whose texts are remembered, such as a reflection."""
    opening_role: str
    """Role of the attempt whose opening is the situation of an entry."""


def _compute(call: StageCall[IndexSettings]) -> StageResult:
    """Write what is new: texts whose next attempt succeeded.

    Near-duplicates are merged and a full memory evicts, as configured. The artifact holds what changed; the
    LanceDB table of the run follows from these artifacts, and can always be made again from them.
    """
    from storage.memory.chain import EMPTY_MEMORY, ENTRIES_FILE, PARENT_INPUT, REMOVALS_FILE
    from storage.memory.entries import write_delta
    from storage.memory.removals import write_removals
    from storage.memory.selection import MemoryLimits, compact
    from storage.tables.trajectories import read_trajectories

    settings, version = call.settings, call.artifact_id
    keep = settings.keep
    memory = call.resources.memory(keep.embedding_model)
    parent = call.inputs.get(PARENT_INPUT)
    before = memory.at(EMPTY_MEMORY if parent is None else parent.manifest.artifact_id)
    trajectories = read_trajectories(trajectory_files(call.inputs["rollouts"], call.resources.store))
    entries = list(new_entries(trajectories, version, settings))
    limits = MemoryLimits(keep.merge_similarity, keep.max_entries, keep.evict or "oldest")
    removals = compact(before, entries, limits, memory.embedder, version)
    rows = {ENTRIES_FILE: write_delta(call.folder / ENTRIES_FILE, entries, memory.embedder)}
    if removals:
        rows[REMOVALS_FILE] = write_removals(call.folder / REMOVALS_FILE, removals)
    reasons = [removal.reason for removal in removals]
    counters = {
        "entries_added": len(entries) - reasons.count("merged"),
        "entries": before.count() + len(entries) - len(removals),
    }
    for reason in sorted(set(reasons)):
        counters[f"entries_{reason}"] = reasons.count(reason)
    return StageResult(counters=counters, rows=rows, memory_version=version)


INDEX_MEMORY = Stage(
    name="index_memory",
    version=3,
    output="memory",
    settings=IndexSettings,
    compute=_compute,
)


def new_entries(
    trajectories: Sequence[Trajectory], memory_version: str, settings: IndexSettings
) -> Iterator[MemoryEntry]:
    """Memory entries of one iteration's trajectories, in their order; one for each text that led to
    success."""
    from erl_pipeline.episodes.rows import opening_messages, situation
    from storage.memory.entries import MemoryEntry

    by_id = {row.trajectory_id: row for row in trajectories}
    openings = {
        row.episode_id: opening_messages(row) for row in trajectories if row.role == settings.opening_role
    }
    for row in trajectories:
        if row.role != settings.text_role or not row.success or row.text is None:
            continue
        opening = openings[row.episode_id]
        failed = by_id[row.parent_trajectory_id or ""]
        yield MemoryEntry(
            entry_id=f"m-{row.trajectory_id}",
            kind="reflection",
            text=row.text,
            task_type=row.task_type,
            task_text=opening[-1]["content"],
            feedback=row.feedback,
            key_text=situation(opening, row.feedback),
            reward_before=failed.reward,
            reward_after=row.reward,
            source_trajectory_id=row.trajectory_id,
            iteration=row.iteration,
            policy_version=row.policy_version,
            parent_entry_ids=row.memory_entry_ids,
            memory_version=memory_version,
            environment=row.environment,
        )
