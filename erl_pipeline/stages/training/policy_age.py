"""The age of the policies that sampled an update's trajectories: the gate of `pipeline.max_age`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from erl_pipeline.episodes.roles import is_trainable
from erl_pipeline.policies.checkpoints import CHECKPOINT

if TYPE_CHECKING:
    from storage.artifacts.manifest import Manifest
    from storage.artifacts.store import ArtifactStore
    from storage.tables.trajectories import Trajectory


def young_policies(store: ArtifactStore, checkpoint: Manifest, max_age: int) -> dict[str, int]:
    """Id -> age of a checkpoint and of those it was trained from, up to `max_age` iterations before it.

    The age counts iterations back along the line of checkpoints; all checkpoints of one iteration have the
    same age. Only the manifests that are needed for this are read.
    """
    ages: dict[str, int] = {}
    age, newer, at = 0, checkpoint, checkpoint
    while True:
        age += at.iteration != newer.iteration
        if age > max_age:
            return ages
        ages[at.artifact_id] = age
        before = store.find(at.inputs[CHECKPOINT]) if CHECKPOINT in at.inputs else None
        if before is None:
            return ages
        newer, at = at, before


def too_old(rows: Iterable[Trajectory], young: Iterable[str]) -> frozenset[str]:
    """Ids of the trainable trajectories that none of the `young` policies sampled."""
    policies = set(young)
    return frozenset(
        row.trajectory_id for row in rows if is_trainable(row) and row.policy_version not in policies
    )
