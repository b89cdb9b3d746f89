"""Reflections of a night become entries of the memory of the run that serves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import polars as pl

from erl_pipeline.config.memory import KeepSettings, MemoryConfig
from erl_pipeline.config.run import RunConfig
from erl_pipeline.episodes.context import situation
from erl_pipeline.policies.embedding import SentenceEmbedder
from erl_pipeline.stages.names import TRAJECTORIES
from erl_pipeline.stages.rollouts.reflect_on_feedback import ASKED, REFLECT_ON_FEEDBACK
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.memory.changes import MemoryLimits, plan_change, write_change
from storage.memory.entries import MemoryEntry
from storage.memory.versions import EMPTY_MEMORY, PARENT_INPUT, latest_version
from storage.memory.view import ReflectionMemory
from storage.runs.ledger import LedgerEntry
from storage.runs.run import Run
from storage.tables.trajectories import Trajectory, read_trajectories, scan_trajectories

REMEMBER_STAGE = "remember_feedback"
"""Stage of a memory version that has the reflections of a night; the key of its place is the night's name."""
_REFLECTIONS = "reflections-"


def remember(store: ArtifactStore, served: Run, night: Run, config: RunConfig) -> None:
    """Add the reflections of a night to the newest memory of the served run, once. The served run has to be
    locked.

    A night may train on batches of earlier nights again, and then reflects on them again: of each
    conversation the first night's reflection counts.

    What was forgotten meanwhile stays forgotten: the newest memory lacks it, and reflections of a forgotten
    user say nothing any more. `config` is the night's.
    """
    recorded = served.stages()
    if any((entry.stage, entry.key) == (REMEMBER_STAGE, night.name) for entry in recorded):
        return
    made = [each.artifact_id for each in night.stages() if each.stage == REFLECT_ON_FEEDBACK.name]
    reflections = read_trajectories([store.open(each).path(TRAJECTORIES) for each in made])
    known = _remembered(store, recorded)
    rows = [row for row in reflections if row.parent_trajectory_id not in known]
    if not any(row.text is not None for row in rows):
        return
    keep, parent = _keep(config), latest_version(served)
    iteration = max((entry.iteration or 0 for entry in recorded), default=0)
    # Nights do not train the served run, so its iterations alone would not tell which notes are the oldest.
    written_in = iteration + 1 + sum(entry.stage == REMEMBER_STAGE for entry in recorded)
    inputs = {f"{_REFLECTIONS}{number:04d}": each for number, each in enumerate(made, start=1)}
    if parent != EMPTY_MEMORY:
        inputs[PARENT_INPUT] = parent
    settings = {"keep": keep.model_dump(mode="json"), "iteration": iteration, "written_in": written_in}
    recipe = Recipe(REMEMBER_STAGE, 2, settings, inputs, 0, kind="memory")
    memory = ReflectionMemory(store.uri, served.name, store, SentenceEmbedder(keep.embedding_model))
    version = recipe.artifact_id
    change = plan_change(
        memory.at(parent),
        list(reflection_entries(rows, iteration, written_in, version)),
        [],
        MemoryLimits(keep.merge_similarity, keep.max_entries, keep.evict or "oldest"),
        memory.embedder,
        iteration=written_in,
        version=version,
    )
    if store.find(version, REMEMBER_STAGE) is None:
        with store.create(recipe, run=served.name, iteration=iteration) as staging:
            write_change(staging.path, change, memory.embedder)
            staging.commit(counters=change.counters, memory_version=version)
    served.record(
        iteration, REMEMBER_STAGE, version, kind="memory", key=night.name, reused=False, seconds=0.0
    )


def _remembered(store: ArtifactStore, recorded: Iterable[LedgerEntry]) -> set[str]:
    """Conversations about which earlier nights have said something, by the ids of their rows."""
    versions = [store.open(entry.artifact_id) for entry in recorded if entry.stage == REMEMBER_STAGE]
    made = {
        each
        for version in versions
        for name, each in version.manifest.inputs.items()
        if name.startswith(_REFLECTIONS)
    }
    rows = scan_trajectories([store.open(each).rows_path(TRAJECTORIES) for each in sorted(made)])
    told = rows.filter(pl.col("text").is_not_null()).select("parent_trajectory_id").collect()
    return set(told["parent_trajectory_id"])


def reflection_entries(
    rows: Iterable[Trajectory], iteration: int, written_in: int, version: str
) -> Iterator[MemoryEntry]:
    """An entry for each reflection, under what the user had asked, as conversations that begin ask for
    notes. `iteration` is the served run's last; `written_in` also counts the nights since."""
    for row in rows:
        if row.text is None:
            continue
        asked = json.loads(row.task_payload)[ASKED]
        yield MemoryEntry(
            entry_id=f"m-{row.trajectory_id}",
            kind="reflection",
            text=row.text,
            task_type=row.task_type,
            task_text=asked,
            feedback=row.feedback,
            key_text=situation([{"role": "user", "content": asked}], ""),
            source_trajectory_id=row.trajectory_id,
            iteration=iteration,
            last_iteration=written_in,
            policy_version=row.policy_version,
            parent_entry_ids=(),
            memory_version=version,
            environment=row.environment,
        )


def _keep(config: RunConfig) -> KeepSettings:
    memory = getattr(config.method, "memory", None)
    assert isinstance(memory, MemoryConfig)  # The configuration was checked.
    return memory.keep
