"""The stage that puts what the extractor wrote into the memory: one version, one commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from erl_pipeline.config.base import Settings
from erl_pipeline.config.memory import KeepSettings
from erl_pipeline.methods.complementary.settings import CALLS, CALLS_FILE
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.stages.memory import INDEX_MEMORY, opened_memory
from erl_pipeline.stages.names import MEMORY, ROLLOUTS, trajectory_files

if TYPE_CHECKING:
    from storage.memory.entries import MemoryEntry

KIND = "experience"
"""Kind of the entries."""

BY_UPDATE = "by an update"


class IndexExperienceSettings(Settings):
    """What the memory keeps, and by which text its entries are found."""

    keep: KeepSettings
    key: Literal["text", "situation"]


def read_calls(path: Path) -> list[dict[str, Any]]:
    """The rows of a table of calls."""
    from erl_pipeline.methods.complementary.tables import EXTRACTOR_CALLS
    from storage.tables.parquet import read_rows

    return list(read_rows([path], EXTRACTOR_CALLS))


def written_entries(
    calls: Sequence[Mapping[str, Any]], key: str, iteration: int, memory_version: str
) -> Iterator[MemoryEntry]:
    """An entry for each text, in order. An update is a new entry, and its parents are the entries that it
    replaces. Entries that were only in the episode's prompt are not parents."""
    from storage.memory.entries import MemoryEntry

    for call in calls:
        for operation, text, replaced, entry_id in zip(
            call["operations"],
            call["texts"],
            call["replaced_entry_ids"],
            call["produced_entry_ids"],
            strict=True,
        ):
            if not entry_id:
                continue
            yield MemoryEntry(
                entry_id=entry_id,
                kind=KIND,
                text=text,
                task_type=call["task_type"],
                task_text=call["situation"],
                feedback=call["feedback"],
                key_text=text if key == "text" else call["situation"],
                source_trajectory_id=call["request_id"],
                iteration=iteration,
                last_iteration=iteration,
                policy_version=call["extractor_version"],
                parent_entry_ids=tuple(replaced),
                memory_version=memory_version,
                environment=call["environment"],
                operation=operation,
            )


def replaced_entries(calls: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Ids of the entries that updates replace, each with how it left."""
    return {
        entry_id: BY_UPDATE
        for call in calls
        for replaced in call["replaced_entry_ids"]
        for entry_id in replaced
    }


def _compute(call: StageCall[IndexExperienceSettings]) -> StageResult:
    """Write how the memory changes. A new text becomes an entry; one that the memory has gives its entry more
    support. Updates replace their parents, entries that were shown get evidence from the attempts that saw
    them, and a full memory evicts."""
    from storage.memory.chain import EMPTY_MEMORY
    from storage.memory.changes import plan_change, write_change
    from storage.memory.credit import evidence
    from storage.memory.selection import MemoryLimits
    from storage.memory.use import memory_searches

    settings, version = call.settings, call.artifact_id
    keep, iteration = settings.keep, call.index["iteration"]
    memory = opened_memory(call.resources, keep.embedding_model)
    parent = call.inputs.get(MEMORY)
    calls = read_calls(call.inputs[CALLS].path(CALLS_FILE))
    files = trajectory_files(call.inputs[ROLLOUTS], call.resources.store)
    change = plan_change(
        memory.at(EMPTY_MEMORY if parent is None else parent.manifest.artifact_id),
        list(written_entries(calls, settings.key, iteration, version)),
        evidence(memory_searches(files)),
        MemoryLimits(keep.merge_similarity, keep.max_entries, keep.evict or "oldest"),
        memory.embedder,
        iteration=iteration,
        version=version,
        replaced=replaced_entries(calls),
    )
    rows = write_change(call.folder, change, memory.embedder)
    return StageResult(counters=change.counters, rows=rows, memory_version=version)


INDEX_EXPERIENCE = Stage(
    name=INDEX_MEMORY.name,
    version=4,
    output="memory",
    settings=IndexExperienceSettings,
    compute=_compute,
    code=("method",),
)
