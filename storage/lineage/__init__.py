"""Where things came from and what they reached: artifacts through manifests, rows through columns."""

from storage.lineage.graph import ArtifactGraph, reachable, runs_by_artifact
from storage.lineage.reach import Reach, Reached, downstream, upstream
from storage.lineage.rows import LineageNode, explain

__all__ = [
    "ArtifactGraph",
    "LineageNode",
    "Reach",
    "Reached",
    "downstream",
    "explain",
    "reachable",
    "runs_by_artifact",
    "upstream",
]
