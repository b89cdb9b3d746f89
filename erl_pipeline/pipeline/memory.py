"""The stage that adds an iteration's successful reflections to the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from erl_pipeline.episodes.rows import opening_messages, situation
from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.outcome import StageOutcome
from erl_pipeline.pipeline.rollouts import trajectory_files
from erl_pipeline.pipeline.stage import Work, run_stage
from storage.memory import EMPTY_MEMORY, MemoryEntry, write_delta
from storage.recipe import Recipe
from storage.trajectories import Trajectory, read_trajectories

ENTRIES = "entries.parquet"


def index_memory(
    context: RunContext, iteration: int, rollouts_id: str, parent_id: str | None
) -> StageOutcome:
    """Commit the new memory version: the reflections whose second attempt cleared the threshold.

    The artifact holds what is new; the LanceDB table of the run is brought up to it afterwards, and can
    always be made again from the artifacts.
    """
    settings = context.config.memory
    assert settings is not None
    inputs = {"rollouts": rollouts_id}
    if parent_id is not None:
        inputs["memory"] = parent_id
    recipe = Recipe(
        stage="index_memory",
        stage_version=1,
        config={
            "memory": settings.model_dump(mode="json", include={"embedding_model"}),
            "threshold": context.config.rollouts.success_threshold,
        },
        inputs=inputs,
        seed=0,
    )

    def write(folder: Path) -> Work:
        trajectories = read_trajectories(trajectory_files(context.store, rollouts_id))
        entries = list(new_entries(trajectories, recipe.artifact_id))
        write_delta(folder / ENTRIES, entries, context.memory.embedder)
        before = context.memory.at(parent_id or EMPTY_MEMORY).count()
        return Work(
            counters={"entries_added": len(entries), "entries": before + len(entries)},
            rows={ENTRIES: len(entries)},
            memory_version=recipe.artifact_id,
        )

    outcome = run_stage(context, recipe, iteration, write)
    context.memory.at(outcome.artifact_id)
    return outcome


def new_entries(trajectories: Sequence[Trajectory], memory_version: str) -> Iterator[MemoryEntry]:
    """Memory entries of one iteration's trajectories, in their order; one for each successful reflection."""
    by_id = {row.trajectory_id: row for row in trajectories}
    openings = {row.episode_id: opening_messages(row) for row in trajectories if row.role == "first_attempt"}
    for row in trajectories:
        if row.role != "reflection" or not row.success or row.reflection is None:
            continue
        opening = openings[row.episode_id]
        failed = by_id[row.parent_trajectory_id or ""]
        yield MemoryEntry(
            entry_id=f"m-{row.trajectory_id}",
            kind="reflection",
            text=row.reflection,
            task_type=row.task_type,
            task_text=opening[-1]["content"],
            feedback=row.feedback,
            key_text=situation(opening, row.feedback),
            reward_before=failed.reward,
            reward_after=row.reward,
            source_trajectory_id=row.trajectory_id,
            iteration=row.iteration,
            policy_version=row.policy_version,
            status="active",
            parent_entry_ids=row.memory_entry_ids,
            memory_version=memory_version,
        )
