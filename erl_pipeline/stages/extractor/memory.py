"""The stages that write the memory: one puts in what the extractor wrote, one has the extractor merge what is
there. Each writes one version, in one commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from erl_pipeline.config.base import Settings
from erl_pipeline.config.memory import KeepSettings
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.stages.extractor.extractor import (
    AskingSettings,
    asking_settings,
    experience_format,
    lessons_of,
    opened_extractor,
)
from erl_pipeline.stages.extractor.names import CALLS, CALLS_FILE, MERGE
from erl_pipeline.stages.memory import INDEX_MEMORY, changed_memory, opened_memory
from erl_pipeline.stages.names import MEMORY, TRAJECTORIES
from erl_pipeline.stages.rollouts.counts import count_tokens
from erl_pipeline.stages.rollouts.generate_rollouts import RETRY_SECONDS
from erl_pipeline.stages.rollouts.single_turn import SingleTurnPrompt, SingleTurnSampler
from storage.artifacts.recipe import derive_seed

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.sources import Sources
    from storage.memory.entries import MemoryEntry
    from storage.memory.view import MemoryView
    from storage.tables.trajectories import Trajectory

KIND = "experience"
"""Kind of the entries."""

BY_UPDATE = "by an update"


class IndexLessonsSettings(Settings):
    """What the memory keeps, and by which text its entries are found."""

    keep: KeepSettings
    key: Literal["text", "situation"]


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


def _index(call: StageCall[IndexLessonsSettings]) -> StageResult:
    """Write how the memory changes. A new text becomes an entry; one that the memory has gives its entry more
    support. Updates replace their parents, entries that were shown get evidence from the attempts that saw
    them, and a full memory evicts."""
    from erl_pipeline.stages.extractor.tables import EXTRACTOR_CALLS
    from storage.tables.parquet import read_rows

    settings, iteration = call.settings, call.index["iteration"]
    calls = list(read_rows([call.inputs[CALLS].path(CALLS_FILE)], EXTRACTOR_CALLS))
    entries = written_entries(calls, settings.key, iteration, call.artifact_id)
    return changed_memory(call, settings.keep, entries, iteration, replaced_entries(calls))


INDEX_LESSONS = Stage(
    name=INDEX_MEMORY.name,
    version=4,
    output="memory",
    settings=IndexLessonsSettings,
    compute=_index,
)

MERGED_AWAY = "in a merge"


@dataclass(frozen=True)
class Item:
    """A text in a merge: an entry, or what the extractor wrote in the request `request_id` to replace the
    entries `parents`."""

    text: str
    entry_id: str = ""
    request_id: str = ""
    parents: tuple[str, ...] = ()


@dataclass
class Scope:
    """The entries of one task type on their way through a merge, `chunk` at a time.

    What the extractor made of a chunk is shown again with the next one. A chunk whose answer is ill-formed or
    empty is kept unchanged, and the next begins without it (as in the official code).
    """

    entries: Sequence[MemoryEntry]
    chunk: int
    _next: int = 0
    _carried: list[Item] = field(default_factory=list)
    _kept: list[Item] = field(default_factory=list)

    @property
    def shown(self) -> list[Item]:
        """The texts of the next request; none when the merge is over."""
        if self._next >= len(self.entries):
            return []
        some = self.entries[self._next : self._next + self.chunk]
        return [*(Item(entry.text, entry.entry_id) for entry in some), *self._carried]

    def answer(self, texts: Sequence[str] | None, request_id: str) -> None:
        """Apply the answer to a request that showed `shown`; `texts` is None where it is ill-formed, and
        empty where nothing changes."""
        shown = self.shown
        self._next += self.chunk
        if not texts:
            self._kept += shown
            self._carried = []
            return
        known = {item.text: item for item in reversed(shown)}
        distinct = list(dict.fromkeys(texts))
        gone = [item for item in shown if item.text not in distinct or known[item.text] is not item]
        parents = tuple(dict.fromkeys(one for item in gone for one in (item.entry_id, *item.parents) if one))
        self._carried = [known.get(text) or Item(text, "", request_id, parents) for text in distinct]

    @property
    def remaining(self) -> list[Item]:
        """The kept and the new texts, once the merge is over."""
        return [*self._kept, *self._carried]


def merged_entries(
    scope: Scope, key: str, iteration: int, memory_version: str, extractor_version: str
) -> list[MemoryEntry]:
    """The entries that a merge has written. Task and situation are those of the first parent."""
    by_id = {entry.entry_id: entry for entry in scope.entries}
    written = []
    for number, item in enumerate(item for item in scope.remaining if not item.entry_id):
        source = by_id[item.parents[0]] if item.parents else scope.entries[0]
        written.append(
            replace(
                source,
                entry_id=f"m-{item.request_id}-{number}",
                text=item.text,
                key_text=item.text if key == "text" else source.key_text,
                source_trajectory_id=item.request_id,
                iteration=iteration,
                last_iteration=iteration,
                policy_version=extractor_version,
                parent_entry_ids=item.parents,
                memory_version=memory_version,
                operation="update",
                support=1,
                credit=0.0,
                credit_count=0,
                retrievals=0,
            )
        )
    return written


def replaced_in(scope: Scope) -> dict[str, str]:
    """Ids of the entries that the merge removed, each with how it left."""
    kept = {item.entry_id for item in scope.remaining}
    return {entry.entry_id: MERGED_AWAY for entry in scope.entries if entry.entry_id not in kept}


class MergeSettings(AskingSettings):
    """What a merge depends on, besides the extractor and the memory."""

    keep: KeepSettings
    key: Literal["text", "situation"]
    chunk: int


def _slice(config: RunConfig, _sources: Sources) -> MergeSettings:
    crl = lessons_of(config).settings
    asking = asking_settings(config, crl.extractor.max_merge_tokens)
    return MergeSettings(**dict(asking), keep=crl.keep(), key=crl.key, chunk=crl.merge_chunk)


def _merge(call: StageCall[MergeSettings]) -> StageResult:
    """Merge the entries of each task type. All task types advance in lockstep, so that their requests are
    answered together."""
    from storage.memory.changes import MemoryLimits, plan_change, write_change
    from storage.tables.trajectories import write_trajectories

    settings, iteration = call.settings, call.index["iteration"]
    memory = opened_memory(call.resources, settings.keep.embedding_model)
    view = memory.at(call.inputs[MEMORY].manifest.artifact_id)
    scopes = _scopes(view, settings.chunk)
    extractor = opened_extractor(call, settings)
    rows = _ask(call, extractor, scopes)
    change = plan_change(
        view,
        [
            entry
            for scope in scopes.values()
            for entry in merged_entries(scope, settings.key, iteration, call.artifact_id, extractor.version)
        ],
        (),
        MemoryLimits(),
        memory.embedder,
        iteration=iteration,
        version=call.artifact_id,
        replaced={entry: how for scope in scopes.values() for entry, how in replaced_in(scope).items()},
    )
    files = write_change(call.folder, change, memory.embedder)
    write_trajectories(call.folder / TRAJECTORIES, rows)
    return StageResult(
        counters={
            **change.counters,
            "requests": len(rows),
            "parse_failures": sum(row.text is None for row in rows),
            **count_tokens(rows),
            **extractor.texts.counters(),
        },
        rows={**files, TRAJECTORIES: len(rows)},
        policy_version=extractor.version,
        memory_version=call.artifact_id,
        determinism=extractor.determinism,
    )


def _scopes(view: MemoryView, chunk: int) -> dict[str, Scope]:
    """Task type -> its entries, the oldest first, for the types with two or more."""
    by_type: dict[str, list[str]] = {}
    for entry_id, task_type in view.entries().select("entry_id", "task_type").iter_rows():
        by_type.setdefault(task_type, []).append(entry_id)
    scopes = {}
    for task_type, entry_ids in sorted(by_type.items()):
        if len(entry_ids) > 1:
            entries = sorted(view.get(entry_ids).values(), key=lambda each: (each.iteration, each.entry_id))
            scopes[task_type] = Scope(entries, chunk)
    return scopes


def _ask(
    call: StageCall[MergeSettings], extractor: SingleTurnSampler, scopes: dict[str, Scope]
) -> list[Trajectory]:
    """Ask until all scopes are merged; returns the answers as sequences to train on. An answer belongs to no
    task; its task id names the task type."""
    from storage.tables.trajectories import trajectory_id

    prompts, iteration = experience_format(call.settings), call.index["iteration"]
    chunks = [-(-len(scope.entries) // scope.chunk) for scope in scopes.values()]
    call.progress.begin(sum(chunks), "chunks")
    rows: list[Trajectory] = []
    for number in range(max(chunks, default=0)):
        call.progress.raise_if_stopped()
        open_scopes = {task_type: scope for task_type, scope in scopes.items() if scope.shown}
        asked = []
        for task_type, scope in open_scopes.items():
            request_id = trajectory_id(call.artifact_id, task_type, number, MERGE, 0)
            asked.append(
                SingleTurnPrompt(
                    request_id=request_id,
                    messages=prompts.merging([item.text for item in scope.shown]),
                    seed=derive_seed(call.seed, iteration, task_type, number, MERGE),
                    role=MERGE,
                    episode_id=request_id,
                    parent_trajectory_id=None,
                    iteration=iteration,
                    task_id=f"{MERGE}/{task_type}",
                    task_type=task_type,
                    environment=scope.entries[0].environment or "",
                    sample_index=number,
                )
            )
        for scope, prompt, answer in zip(open_scopes.values(), asked, extractor.ask(asked), strict=True):
            texts = None if answer is None else prompts.read_merging(answer.text)
            texts = None if texts is None else [extractor.texts.text(text) for text in texts]
            scope.answer(texts, prompt.request_id)
            if answer is not None:
                rows.append(extractor.trajectory(prompt, answer, None if texts is None else "\n".join(texts)))
        call.progress.advance(len(asked))
    return rows


MERGE_EXPERIENCE = Stage(
    name="merge_experience",
    version=6,
    output="memory",
    settings=MergeSettings,
    compute=_merge,
    slice=_slice,
    code=("environment", "engine"),
    needs="sampling",
    retry_seconds=RETRY_SECONDS,
)
