"""Warnings about environments that were never examined, or failed: a policy may learn something unwanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from erl_pipeline.plan.plan import Plan
    from storage.artifacts.store import ArtifactStore


def unqualified_environment(store: ArtifactStore, plan: Plan) -> list[str]:
    """A sentence if the environment of a plan is not qualified in this store; else an empty list."""
    from erl_pipeline.runs.qualification import state_of_qualification, tasks_of_plan

    tasks = tasks_of_plan(plan)
    if tasks is None:
        return []
    qualified, sentence = state_of_qualification(store, tasks)
    return [] if qualified else [f"{sentence}; `erl-pipeline env qualify CONFIG` examines it"]
