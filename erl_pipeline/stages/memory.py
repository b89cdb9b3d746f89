"""The reflection memory: the stage that adds an iteration's successful reflections and credits the entries
that were seen, and the one that removes what somebody asked to have forgotten."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from erl_pipeline.config.base import Settings
from erl_pipeline.config.memory import KeepSettings
from erl_pipeline.environments.messages import without_thoughts, words_of
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.stages.names import MEMORY, NOTE_TRIALS, ROLLOUTS, trajectory_files
from storage.memory.versions import FORGET_STAGE, FORGET_VERSION, REQUEST_INPUT
from storage.tables.scored import is_scored, scored

if TYPE_CHECKING:
    from erl_pipeline.plan.plan import RunState
    from erl_pipeline.plan.planner import Planner
    from erl_pipeline.plan.stage import Resources
    from storage.artifacts.artifact import Artifact
    from storage.memory.entries import MemoryEntry
    from storage.memory.versions import ForgetRequest
    from storage.memory.view import ReflectionMemory
    from storage.tables.trajectories import Trajectory


def opened_memory(resources: Resources, embedding_model: str) -> ReflectionMemory:
    """The memory of the run; its versions are searched and written through this object."""

    def open_memory() -> ReflectionMemory:
        from erl_pipeline.policies.embedding import SentenceEmbedder
        from storage.memory.view import ReflectionMemory

        store = resources.store
        return ReflectionMemory(store.uri, resources.settings.run, store, SentenceEmbedder(embedding_model))

    return resources.keep(f"memory {embedding_model}", open_memory)


TRIALS = "trials"
"""The input of the stage that indexes a memory: what trials of new notes showed."""

NoteKey = tuple[str, str]
"""Task type and text: equal ones are one note."""


class IndexSettings(Settings):
    """What a memory keeps, and which texts it is made of."""

    keep: KeepSettings
    text_role: str
    """Role of the trajectories whose texts are remembered, such as a reflection."""
    opening_role: str
    """Role of the attempt whose opening is the situation of an entry."""


def _index(call: StageCall[IndexSettings]) -> StageResult:
    """Write how the memory changes. A text whose next attempt succeeded becomes an entry, unless a trial has
    judged otherwise; one that the memory has gives its entry more support. Entries that were seen are updated
    with the gain of the episodes that saw them. A full memory evicts.

    The artifact holds the changes; the LanceDB table of the run is derived from these artifacts, and can
    always be rebuilt from them.
    """
    from storage.memory.credit import memory_searches, observations
    from storage.tables.trajectories import read_trajectories

    files = trajectory_files(call.inputs[ROLLOUTS], call.resources.store)
    trajectories = read_trajectories(files)
    entries = new_entries(trajectories, call.artifact_id, call.settings, _judged(call.inputs.get(TRIALS)))
    iteration = max((row.iteration for row in trajectories), default=0)
    result = changed_memory(call, call.settings.keep, entries, iteration)
    differences = [each.difference for each in observations(memory_searches(files))]
    effect = {"memory_effect": math.fsum(differences) / len(differences)} if differences else {}
    return replace(result, metrics=effect)


def changed_memory(
    call: StageCall[Any],
    keep: KeepSettings,
    entries: Iterable[MemoryEntry],
    iteration: int,
    replaced: Mapping[str, str] | None = None,
) -> StageResult:
    """Write how the memory among the inputs changes by entries that an iteration has written, by those that
    they replace, each with how it left, and by what the rollouts show of the entries that they saw."""
    from storage.memory.changes import MemoryLimits, plan_change, write_change
    from storage.memory.credit import evidence, memory_searches
    from storage.memory.versions import EMPTY_MEMORY

    memory = opened_memory(call.resources, keep.embedding_model)
    parent = call.inputs.get(MEMORY)
    change = plan_change(
        memory.at(EMPTY_MEMORY if parent is None else parent.manifest.artifact_id),
        list(entries),
        evidence(memory_searches(trajectory_files(call.inputs[ROLLOUTS], call.resources.store))),
        MemoryLimits(keep.merge_similarity, keep.max_entries, keep.evict or "oldest"),
        memory.embedder,
        iteration=iteration,
        version=call.artifact_id,
        replaced=replaced,
    )
    rows = write_change(call.folder, change, memory.embedder)
    return StageResult(counters=change.counters, rows=rows, memory_version=call.artifact_id)


def seen_entries(
    call: StageCall[Any], embedding_model: str, attempts: Iterable[Trajectory]
) -> Mapping[str, MemoryEntry]:
    """Id -> entry, of those in the memory among the inputs that attempts saw."""
    if MEMORY not in call.inputs:
        return {}
    seen = sorted({entry_id for row in attempts for entry_id in row.memory_entry_ids})
    view = opened_memory(call.resources, embedding_model).at(call.inputs[MEMORY].manifest.artifact_id)
    return view.get(seen)


INDEX_MEMORY = Stage(
    name="index_memory",
    version=8,
    output="memory",
    settings=IndexSettings,
    compute=_index,
)


def written_notes(trajectories: Sequence[Trajectory], text_role: str, opening_role: str) -> list[Trajectory]:
    """The trajectories with a text that may be remembered, in their order. What was not scored, or is of an
    episode whose first attempt was not, is not remembered."""
    firsts = {row.episode_id: row for row in trajectories if row.role == opening_role}
    return [
        row
        for row in scored(trajectories)
        if row.role == text_role and row.text is not None and is_scored(firsts[row.episode_id])
    ]


def _judged(trials: Artifact | None) -> Mapping[NoteKey, bool]:
    """Whether notes that the memory does not have passed their trials; empty where there were none."""
    if trials is None:
        return {}
    from storage.memory.trials import NOTE_TRIALS as TABLE
    from storage.tables.parquet import read_rows

    rows = read_rows([trials.path(NOTE_TRIALS)], TABLE)
    return {(row["task_type"], row["text"]): row["kept"] for row in rows}


def admitted_notes(written: Sequence[Trajectory], judged: Mapping[NoteKey, bool]) -> list[Trajectory]:
    """Those that the memory keeps: all that led to success, unless their note failed its trial. Of a note
    that passed its trial and never led to success, the first."""
    kept: list[Trajectory] = []
    known = {(row.task_type, row.text) for row in written if row.success}
    for row in written:
        assert row.text is not None
        key = row.task_type, row.text
        if judged.get(key, row.success) and (row.success or key not in known):
            kept.append(row)
            known.add(key)
    return kept


def new_entries(
    trajectories: Sequence[Trajectory],
    memory_version: str,
    settings: IndexSettings,
    judged: Mapping[NoteKey, bool] = MappingProxyType({}),
) -> Iterator[MemoryEntry]:
    """Memory entries of one iteration's trajectories, in their order; one for each text that is admitted.
    `judged`: whether new notes passed their trials."""
    from erl_pipeline.episodes.context import opening_messages, situation
    from storage.memory.entries import MemoryEntry

    firsts = {row.episode_id: row for row in trajectories if row.role == settings.opening_role}
    by_id = {row.trajectory_id: row for row in trajectories}
    after = {row.parent_trajectory_id: row for row in trajectories}
    written = written_notes(trajectories, settings.text_role, settings.opening_role)
    for row in admitted_notes(written, judged):
        assert row.text is not None
        opening = opening_messages(firsts[row.episode_id])
        text = row.text
        if settings.keep.examples:
            assert row.parent_trajectory_id is not None
            text = example(by_id[row.parent_trajectory_id], row.text, after[row.trajectory_id])
        yield MemoryEntry(
            entry_id=f"m-{row.trajectory_id}",
            kind="reflection",
            text=text,
            task_type=row.task_type,
            task_text=opening[-1]["content"],
            feedback=row.feedback,
            key_text=situation(opening, row.feedback),
            source_trajectory_id=row.trajectory_id,
            iteration=row.iteration,
            last_iteration=row.iteration,
            policy_version=row.policy_version,
            parent_entry_ids=row.memory_entry_ids,
            memory_version=memory_version,
            environment=row.environment,
        )


def example(failed: Trajectory, reflection: str, revised: Trajectory) -> str:
    """A failed attempt, the reflection on it, and the attempt that followed, as one text."""
    return (
        f"Initial attempt:\n{_policy_words(failed)}\nReflection:\n{reflection}\n"
        f"Revised attempt:\n{_policy_words(revised)}"
    )


def _policy_words(attempt: Trajectory) -> str:
    """What the policy answered in its turns, and the tools that it called."""
    said = [each for each in json.loads(attempt.messages) if each["role"] == "assistant"]
    turns = [words_of(without_thoughts(each)) for each in said]
    return "\n".join(filter(None, turns))


class ForgetSettings(Settings):
    """Nothing: what is forgotten is in the request, which is an input."""


def _forget(call: StageCall[ForgetSettings]) -> StageResult:
    """Write the memory version without the entries that the request names."""
    from storage.memory.chain import OPERATIONS_FILE
    from storage.memory.forgetting import write_forgotten

    parent = call.inputs[MEMORY].manifest.artifact_id
    request = call.inputs[REQUEST_INPUT].manifest
    removed = write_forgotten(call.resources.store, call.folder, parent, request, call.artifact_id)
    return StageResult(
        counters={"entries_forgotten": removed},
        rows={OPERATIONS_FILE: removed},
        memory_version=call.artifact_id,
    )


def plan_forgetting(
    planner: Planner, version: str, iteration: int, of: Callable[[ForgetRequest], bool] = lambda _: True
) -> str:
    """Plan the removal of what was asked to be forgotten after an iteration; returns the id of the version
    after it.

    Args:
        of: the requests that take effect here; default: all.
    """
    for number, request in enumerate(planner.requests.get(iteration, ())):
        if of(request):
            inputs = {MEMORY: version, REQUEST_INPUT: request.artifact_id}
            version = planner.add(
                FORGET_MEMORY, inputs, iteration=iteration, settings=_NOTHING, key=f"{number:04d}"
            )
    return version


def state_evaluated(planner: Planner, state: RunState, iteration: int, stage: str) -> RunState:
    """The state that an evaluation at the end of an iteration reads, by the name of its stage: what was asked
    to be forgotten after it was made is still there, so that it is not made again."""
    if MEMORY not in state.memories or iteration not in planner.requests:
        return state
    requests = {each.artifact_id: each for each in planner.requests[iteration]}
    removals = {
        node.artifact_id: node.recipe.inputs
        for node in planner.nodes
        if node.stage is FORGET_MEMORY and node.iteration == iteration
    }
    version = state.memories[MEMORY]
    while version in removals and not requests[removals[version][REQUEST_INPUT]].came_before(stage):
        version = removals[version][MEMORY]
    return replace(state, memories={**state.memories, MEMORY: version})


_NOTHING = ForgetSettings()

FORGET_MEMORY = Stage(
    name=FORGET_STAGE,
    version=FORGET_VERSION,
    output="memory",
    settings=ForgetSettings,
    compute=_forget,
    part_of=INDEX_MEMORY.name,
)
