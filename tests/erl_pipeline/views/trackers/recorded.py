"""Hand-made artifacts whose only content is a number."""

from __future__ import annotations

from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from tests.stage_records import KINDS


def commit(store: ArtifactStore, stage: str, iteration: int, loss: float) -> Manifest:
    """An artifact of a stage with the metric `loss`."""
    recipe = Recipe(stage, 1, {"iteration": iteration, "loss": loss}, {}, 0, kind=KINDS[stage])
    with store.create(recipe, run="small", iteration=iteration) as staging:
        return staging.commit(metrics={"loss": loss}).manifest
