"""The stage in which the extractor merges what the memory holds; one version, one commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from erl_pipeline.config.memory import KeepSettings
from erl_pipeline.methods.complementary.asking import (
    AskingSettings,
    Extractor,
    ExtractorPrompt,
    Origin,
    asking_settings,
    experience_format,
)
from erl_pipeline.methods.complementary.settings import MERGE, ComplementaryConfig, keep_settings
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.stages.memory import opened_memory
from erl_pipeline.stages.names import MEMORY, TRAJECTORIES
from erl_pipeline.stages.rollouts.generate_rollouts import RETRY_SECONDS
from storage.artifacts.recipe import derive_seed

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.sources import Sources
    from storage.memory.entries import MemoryEntry
    from storage.memory.view import MemoryView
    from storage.tables.trajectories import Trajectory


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
    assert isinstance(config.method, ComplementaryConfig)
    crl = config.method.crl
    assert crl is not None
    asking = asking_settings(config, crl.extractor.max_merge_tokens)
    return MergeSettings(
        **{name: getattr(asking, name) for name in AskingSettings.model_fields},
        keep=keep_settings(crl),
        key=crl.key,
        chunk=crl.merge_chunk,
    )


def _compute(call: StageCall[MergeSettings]) -> StageResult:
    """Merge the entries of each task type. All task types advance in lockstep, so that their requests are
    answered together."""
    from storage.memory.changes import plan_change, write_change
    from storage.memory.selection import MemoryLimits
    from storage.tables.trajectories import write_trajectories

    settings, iteration = call.settings, call.index["iteration"]
    memory = opened_memory(call.resources, settings.keep.embedding_model)
    view = memory.at(call.inputs[MEMORY].manifest.artifact_id)
    scopes = _scopes(view, settings.chunk)
    extractor = Extractor(call, settings)
    rows = _merge(call, extractor, scopes)
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
            "generated_tokens": sum(sum(row.response_mask) for row in rows),
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


def _merge(
    call: StageCall[MergeSettings], extractor: Extractor, scopes: dict[str, Scope]
) -> list[Trajectory]:
    """Ask until all scopes are merged; returns the answers as sequences to train on."""
    from storage.tables.trajectories import trajectory_id

    prompts = experience_format(call.settings)
    chunks = [-(-len(scope.entries) // scope.chunk) for scope in scopes.values()]
    call.progress.begin(sum(chunks), "chunks")
    rows: list[Trajectory] = []
    for number in range(max(chunks, default=0)):
        call.progress.raise_if_stopped()
        asked = [(task_type, scope) for task_type, scope in scopes.items() if scope.shown]
        questions = [
            ExtractorPrompt(
                trajectory_id(call.artifact_id, task_type, number, MERGE, 0),
                prompts.merging([item.text for item in scope.shown]),
                derive_seed(call.seed, call.index["iteration"], task_type, number, MERGE),
            )
            for task_type, scope in asked
        ]
        for (task_type, scope), question, answer in zip(
            asked, questions, extractor.ask(questions), strict=True
        ):
            texts = None if answer is None else prompts.read_merging(answer.text)
            texts = None if texts is None else [extractor.texts.text(text) for text in texts]
            scope.answer(texts, question.request_id)
            if answer is not None:
                origin = _origin(scope, task_type, call.index["iteration"], number, question)
                rows.append(extractor.trajectory(origin, question, answer, texts))
        call.progress.advance(len(asked))
    return rows


def _origin(scope: Scope, task_type: str, iteration: int, number: int, question: ExtractorPrompt) -> Origin:
    """An answer belongs to no task; its task id names the task type."""
    return Origin(
        episode_id=question.request_id,
        parent_trajectory_id=None,
        iteration=iteration,
        task_id=f"{MERGE}/{task_type}",
        task_type=task_type,
        environment=scope.entries[0].environment or "",
        role=MERGE,
        sample_index=number,
    )


MERGE_EXPERIENCE = Stage(
    name="merge_experience",
    version=3,
    output="memory",
    settings=MergeSettings,
    compute=_compute,
    slice=_slice,
    code=("environment", "method", "engine"),
    needs="device",
    retry_seconds=RETRY_SECONDS,
)
