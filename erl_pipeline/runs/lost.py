"""Artifacts that a run's ledger names and its store has lost."""

from __future__ import annotations

from collections.abc import Mapping

from erl_pipeline.plan.plan import Place, Plan, PlannedStage
from erl_pipeline.runs.report import REPORTED_ITERATIONS
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact
from storage.filesystem import open_root


def lost_stages(store: ArtifactStore, plan: Plan, recorded: Mapping[Place, str]) -> list[PlannedStage]:
    """The stages of a plan whose artifacts the ledger names, and which are gone or have no readable manifest.

    Folders are listed, so that a start takes no longer for a long run. Of a run that is short enough to get
    its report automatically, for which all manifests are read at its end, they are read now too, if the store
    is local.

    Args:
        recorded: the ledger's artifact at each place.
    """
    reads = plan.iterations <= REPORTED_ITERATIONS and open_root(store.uri).local
    listed: dict[str, frozenset[str]] = {}
    lost = []
    for node in plan.nodes:
        if recorded.get(node.place) != node.artifact_id:
            continue
        stage = node.stage.name
        if stage not in listed:
            listed[stage] = frozenset(store.ids(stage))
        if node.artifact_id not in listed[stage] or (reads and not _is_readable(store, node)):
            lost.append(node)
    return lost


def _is_readable(store: ArtifactStore, node: PlannedStage) -> bool:
    try:
        return store.find(node.artifact_id, node.stage.name) is not None
    except DamagedArtifact:
        return False
