"""The stage that adds an iteration's successful reflections to the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from erl_pipeline.config.memory import MemoryConfig
from erl_pipeline.episodes.rows import opening_messages, situation
from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.outcome import StageOutcome
from erl_pipeline.pipeline.stage import Work, run_stage
from erl_pipeline.stages.rollouts import trajectory_files
from storage.artifacts.recipe import Recipe
from storage.memory.chain import EMPTY_MEMORY, ENTRIES_FILE, REMOVALS_FILE
from storage.memory.entries import MemoryEntry, write_delta
from storage.memory.forgetting import forget_recipe, forget_requests, write_forgotten
from storage.memory.removals import write_removals
from storage.memory.selection import MemoryLimits, compact
from storage.runs.run import Run
from storage.tables.trajectories import Trajectory, read_trajectories

INDEX_STAGE = "index_memory"


def index_memory(
    context: RunContext, iteration: int, rollouts_id: str, parent_id: str | None
) -> StageOutcome:
    """Commit the new memory version: the reflections whose second attempt cleared the threshold.

    Near-duplicates are merged and a full memory evicts, as configured; then what was asked to be forgotten
    after this iteration leaves, in versions of their own, of which the last is given back. The artifacts
    hold what changed; the LanceDB table of the run is brought up to them afterwards, and can always be made
    again from them.
    """
    settings = context.config.memory
    assert settings is not None
    inputs = {"rollouts": rollouts_id}
    if parent_id is not None:
        inputs["memory"] = parent_id
    recipe = Recipe(
        stage=INDEX_STAGE,
        stage_version=2,
        kind="memory",
        settings={
            "memory": memory_recipe(settings),
            "threshold": context.config.rollouts.success_threshold,
        },
        inputs=inputs,
        seed=0,
    )

    def write(folder: Path) -> Work:
        trajectories = read_trajectories(trajectory_files(context.store, rollouts_id))
        entries = list(new_entries(trajectories, recipe.artifact_id))
        before = context.memory.at(parent_id or EMPTY_MEMORY)
        limits = MemoryLimits(settings.merge_similarity, settings.max_entries, settings.evict)
        embedder = context.memory.embedder
        removals = compact(before, entries, limits, embedder, recipe.artifact_id)
        rows = {ENTRIES_FILE: write_delta(folder / ENTRIES_FILE, entries, embedder)}
        if removals:
            rows[REMOVALS_FILE] = write_removals(folder / REMOVALS_FILE, removals)
        reasons = [removal.reason for removal in removals]
        counters = {
            "entries_added": len(entries) - reasons.count("merged"),
            "entries": before.count() + len(entries) - len(removals),
        }
        for reason in sorted(set(reasons)):
            counters[f"entries_{reason}"] = reasons.count(reason)
        return Work(counters=counters, rows=rows, memory_version=recipe.artifact_id)

    outcome = run_stage(context, recipe, iteration, write)
    for number, request_id in enumerate(_requests(context.run).get(iteration, [])):
        outcome = _fulfil(context, iteration, outcome.artifact_id, request_id, f"{number:04d}")
    context.memory.at(outcome.artifact_id)
    return outcome


def memory_recipe(settings: MemoryConfig) -> dict[str, Any]:
    """The settings that the memory's contents follow from; those that are off are left out."""
    used = {"embedding_model"}
    if settings.merge_similarity is not None:
        used.add("merge_similarity")
    if settings.max_entries is not None:
        used |= {"max_entries", "evict"}
    return settings.model_dump(mode="json", include=used)


def new_entries(trajectories: Sequence[Trajectory], memory_version: str) -> Iterator[MemoryEntry]:
    """Memory entries of one iteration's trajectories, in their order; one for each successful reflection."""
    by_id = {row.trajectory_id: row for row in trajectories}
    openings = {row.episode_id: opening_messages(row) for row in trajectories if row.role == "first_attempt"}
    for row in trajectories:
        if row.role != "reflection" or not row.success or row.text is None:
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


def _fulfil(context: RunContext, iteration: int, parent_id: str, request_id: str, key: str) -> StageOutcome:
    """The memory version without the entry that a request names."""
    recipe = forget_recipe(parent_id, request_id)

    def write(folder: Path) -> Work:
        removed = write_forgotten(context.store, folder, recipe)
        return Work(
            counters={
                "entries_forgotten": removed,
                "entries": context.memory.at(parent_id).count() - removed,
            },
            rows={REMOVALS_FILE: removed},
            memory_version=recipe.artifact_id,
        )

    return run_stage(context, recipe, iteration, write, key=key)


@lru_cache(maxsize=1)
def _requests(run: Run) -> dict[int, list[str]]:
    """Read once for each open run: `forget` takes the lock that the context of the run holds."""
    return forget_requests(run)
