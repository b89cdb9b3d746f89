"""This project's own OpenLineage facets; their JSON schemas are in `facet_schemas` beside this module."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import attr
from openlineage.client.generated.base import DatasetFacet, RunFacet

PREFIX = "erlPipeline"
"""Keys of custom facets begin with this prefix, as the specification demands."""
VERSION = "1-0-0"


def schema_url(name: str) -> str:
    """The URI that names a facet's schema, with the path of its definition in the document."""
    return f"urn:erl-pipeline:openlineage-facets:{VERSION}:{name}.json#/$defs/{name}"


def facet_schema(name: str) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a facet, such as `PolicyVersionDatasetFacet`."""
    folder = files("erl_pipeline.views.lineage").joinpath("facet_schemas")
    schema: dict[str, Any] = json.loads(folder.joinpath(f"{name}.json").read_text(encoding="utf-8"))
    return schema


@attr.define
class PolicyVersionDatasetFacet(DatasetFacet):
    """The checkpoint that an artifact is, or from which it was sampled or evaluated."""

    policyVersion: str
    """Artifact id of the checkpoint."""
    isPolicy: bool
    """Whether the artifact is that checkpoint itself."""

    @staticmethod
    def _get_schema() -> str:
        return schema_url("PolicyVersionDatasetFacet")


@attr.define
class MemoryVersionDatasetFacet(DatasetFacet):
    """The version of the reflection memory that an artifact is, or with which it was made."""

    memoryVersion: str
    """Artifact id of the memory version."""
    isMemory: bool
    """Whether the artifact is that memory version itself."""

    @staticmethod
    def _get_schema() -> str:
        return schema_url("MemoryVersionDatasetFacet")


@attr.define
class RowCountsDatasetFacet(DatasetFacet):
    """The number of rows of each table that an artifact holds."""

    tables: dict[str, int]
    """Name of the table's schema (`trajectories`, `sft`, `memory`) -> number of rows."""

    @staticmethod
    def _get_schema() -> str:
        return schema_url("RowCountsDatasetFacet")


@attr.define
class StageRunFacet(RunFacet):
    """The stage that ran, and what its result depends on."""

    stage: str
    stageVersion: int
    trainingRun: str
    """The training run that made the artifact first; others may share it."""
    seed: int
    codeVersion: str
    counters: dict[str, float]
    metrics: dict[str, float]
    iteration: int | None = None
    """None, and left out, for what was made before the first iteration."""

    @staticmethod
    def _get_schema() -> str:
        return schema_url("StageRunFacet")
