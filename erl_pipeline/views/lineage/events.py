"""A run's artifacts as OpenLineage events: each stage is a job, each artifact an execution and a dataset."""

import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import TypeVar

import attr
import pyarrow as pa
import pyarrow.parquet as pq
from openlineage.client.constants import __version__ as client_version
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    dataset_version_dataset,
    datasource_dataset,
    input_statistics_input_dataset,
    job_type_job,
    output_statistics_output_dataset,
    parent_run,
    processing_engine_run,
    schema_dataset,
    source_code_location_job,
    tags_run,
)
from openlineage.client.generated.base import DatasetFacet, JobFacet, RunFacet

from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.filesystem import open_root
from storage.lineage.graph import reachable
from storage.runs.run import Run as TrainingRun

PREFIX = "erlPipeline"
"""Keys of custom facets begin with this prefix, as the specification demands."""
VERSION = "1-0-0"


def schema_url(name: str) -> str:
    """The URI that names a facet's schema, a file of `facet_schemas`, with the path of its definition."""
    return f"urn:erl-pipeline:openlineage-facets:{VERSION}:{name}.json#/$defs/{name}"


class _OwnSchema:
    """A facet whose schema is this project's."""

    @classmethod
    def _get_schema(cls) -> str:
        return schema_url(cls.__name__)


@attr.define
class PolicyVersionDatasetFacet(_OwnSchema, DatasetFacet):
    """The checkpoint that an artifact is, or from which it was sampled or evaluated."""

    policyVersion: str
    """Artifact id of the checkpoint."""
    isPolicy: bool
    """Whether the artifact is that checkpoint itself."""


@attr.define
class MemoryVersionDatasetFacet(_OwnSchema, DatasetFacet):
    """The version of the reflection memory that an artifact is, or with which it was made."""

    memoryVersion: str
    """Artifact id of the memory version."""
    isMemory: bool
    """Whether the artifact is that memory version itself."""


@attr.define
class RowCountsDatasetFacet(_OwnSchema, DatasetFacet):
    """The number of rows of each table that an artifact holds."""

    tables: dict[str, int]
    """Name of the table's schema (`trajectories`, `sft`, `memory`) -> number of rows."""


@attr.define
class StageRunFacet(_OwnSchema, RunFacet):
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


_Statistics = TypeVar("_Statistics")
_IDS = uuid.uuid5(uuid.NAMESPACE_URL, "urn:erl-pipeline:artifacts")


def run_events(store: ArtifactStore, run: TrainingRun, repository: str | None = None) -> Iterator[RunEvent]:
    """A START and a COMPLETE event for each artifact of a run and for all that they were made from, in the
    order of time.

    The namespace of jobs and datasets is the store. A job's name is `RUN.STAGE`, with the run that made the
    artifact; a dataset's is `STAGE/ARTIFACT`. Ids are computed from store and artifact, so that a consumer
    that gets the same event twice stores it once.

    Raises StoreError when an artifact is damaged: Parquet files are opened to read their columns.
    """
    manifests = reachable(store, [entry.artifact_id for entry in run.stages()])
    known = {manifest.artifact_id: manifest for manifest in manifests}
    builder = _Builder(store, known, repository)
    moments = [
        (moment, order, manifest, state)
        for manifest in manifests
        for order, (moment, state) in enumerate(
            ((manifest.started_at, RunState.START), (manifest.finished_at, RunState.COMPLETE))
        )
    ]
    for moment, _, manifest, state in sorted(moments, key=lambda event: (event[0], event[1])):
        yield builder.event(manifest, state, moment)


def namespace(store_uri: str) -> str:
    """The store as a URI: its own for an object store, `file:///path` for a folder."""
    root = open_root(store_uri)
    return f"file://{root.path}" if root.local else store_uri.rstrip("/")


def execution_id(name: str) -> str:
    """The OpenLineage run id (a UUID) of an artifact's making or of a training run, from its name."""
    return str(uuid.uuid5(_IDS, name))


class _Builder:
    """Makes the events of one store."""

    def __init__(self, store: ArtifactStore, known: Mapping[str, Manifest], repository: str | None) -> None:
        self._store = store
        self._known = known
        self._repository = repository
        self._namespace = namespace(store.uri)

    def event(self, manifest: Manifest, state: RunState, moment: datetime) -> RunEvent:
        """The event at the start or end of an artifact's making; only the one at the end has an output."""
        ended = state is RunState.COMPLETE
        return RunEvent(
            eventTime=moment.isoformat(),
            producer=_producer(manifest),
            eventType=state,
            run=Run(self._execution_id(manifest), facets=self._run_facets(manifest)),
            job=Job(self._namespace, f"{manifest.run}.{manifest.stage}", facets=self._job_facets(manifest)),
            inputs=[self._input(self._known[input_id]) for input_id in manifest.inputs.values()],
            outputs=[self._output(manifest)] if ended else [],
        )

    def _execution_id(self, manifest: Manifest) -> str:
        # Two stores hold artifacts of the same id, each with an execution of its own.
        return execution_id(f"{self._namespace}/artifacts/{dataset_name(manifest)}")

    def _run_facets(self, manifest: Manifest) -> dict[str, RunFacet]:
        producer = _producer(manifest)
        return {
            "parent": parent_run.ParentRunFacet(
                run=parent_run.Run(execution_id(f"{self._namespace}/runs/{manifest.run}")),
                job=parent_run.Job(self._namespace, manifest.run),
                producer=producer,
            ),
            "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
                version=manifest.packages.get("erl-pipeline", manifest.code_version),
                name="erl-pipeline",
                openlineageAdapterVersion=client_version,
                producer=producer,
            ),
            "tags": tags_run.TagsRunFacet(
                tags=[
                    tags_run.TagsRunFacetFields("code_version", manifest.code_version, "erl-pipeline"),
                    *(
                        tags_run.TagsRunFacetFields(f"package.{name}", version, "erl-pipeline")
                        for name, version in sorted(manifest.packages.items())
                    ),
                ],
                producer=producer,
            ),
            f"{PREFIX}_stage": StageRunFacet(
                stage=manifest.stage,
                stageVersion=manifest.stage_version,
                trainingRun=manifest.run,
                iteration=manifest.iteration,
                seed=manifest.seed,
                codeVersion=manifest.code_version,
                counters=manifest.counters,
                metrics=manifest.metrics,
                producer=producer,
            ),
        }

    def _job_facets(self, manifest: Manifest) -> dict[str, JobFacet]:
        producer = _producer(manifest)
        facets: dict[str, JobFacet] = {
            "jobType": job_type_job.JobTypeJobFacet(
                processingType="BATCH", integration="ERL_PIPELINE", jobType="STAGE", producer=producer
            )
        }
        if self._repository is not None:
            facets["sourceCodeLocation"] = source_code_location_job.SourceCodeLocationJobFacet(
                type="git",
                url=self._repository,
                repoUrl=self._repository,
                version=manifest.code_version,
                producer=producer,
            )
        return facets

    def _input(self, manifest: Manifest) -> InputDataset:
        facet = input_statistics_input_dataset.InputStatisticsInputDatasetFacet
        return InputDataset(
            self._namespace,
            dataset_name(manifest),
            facets=self._dataset_facets(manifest),
            inputFacets={"inputStatistics": _statistics(facet, manifest)},
        )

    def _output(self, manifest: Manifest) -> OutputDataset:
        facet = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
        return OutputDataset(
            self._namespace,
            dataset_name(manifest),
            facets={**self._dataset_facets(manifest), **self._schema(manifest)},
            outputFacets={"outputStatistics": _statistics(facet, manifest)},
        )

    def _dataset_facets(self, manifest: Manifest) -> dict[str, DatasetFacet]:
        producer, artifact_id = _producer(manifest), manifest.artifact_id
        facets: dict[str, DatasetFacet] = {
            "dataSource": datasource_dataset.DatasourceDatasetFacet(
                name=self._namespace,
                uri=f"{self._namespace}/artifacts/{dataset_name(manifest)}",
                producer=producer,
            ),
            "version": dataset_version_dataset.DatasetVersionDatasetFacet(artifact_id, producer=producer),
        }
        tables = _row_counts(manifest)
        if tables:
            facets[f"{PREFIX}_rowCounts"] = RowCountsDatasetFacet(tables, producer=producer)
        if manifest.policy_version is not None:
            facets[f"{PREFIX}_policyVersion"] = PolicyVersionDatasetFacet(
                manifest.policy_version, manifest.policy_version == artifact_id, producer=producer
            )
        if manifest.memory_version is not None:
            facets[f"{PREFIX}_memoryVersion"] = MemoryVersionDatasetFacet(
                manifest.memory_version, manifest.memory_version == artifact_id, producer=producer
            )
        return facets

    def _schema(self, manifest: Manifest) -> dict[str, DatasetFacet]:
        """The columns of an artifact's Parquet file; if it has several files, each with its columns."""
        names = [entry.path for entry in manifest.files if entry.path.endswith(".parquet")]
        if not names:
            return {}
        artifact = self._store.open_found(manifest)
        columns = [_columns(pq.read_schema(artifact.rows_path(name))) for name in names]
        fields = [
            schema_dataset.SchemaDatasetFacetFields(name, "parquet", fields=of_file)
            for name, of_file in zip(names, columns, strict=True)
        ]
        fields = columns[0] if len(columns) == 1 else fields
        return {"schema": schema_dataset.SchemaDatasetFacet(fields=fields, producer=_producer(manifest))}


def dataset_name(manifest: Manifest) -> str:
    """The OpenLineage name of an artifact: its stage and id, which are also its path in the store."""
    return f"{manifest.stage}/{manifest.artifact_id}"


def _columns(schema: pa.Schema) -> list[schema_dataset.SchemaDatasetFacetFields]:
    return [
        schema_dataset.SchemaDatasetFacetFields(column.name, str(column.type), ordinal_position=position)
        for position, column in enumerate(schema, start=1)
    ]


def _row_counts(manifest: Manifest) -> dict[str, int]:
    tables: dict[str, int] = {}
    for entry in manifest.files:
        if entry.table is not None:
            tables[entry.table] = tables.get(entry.table, 0) + (entry.rows or 0)
    return tables


def _statistics(facet: Callable[..., _Statistics], manifest: Manifest) -> _Statistics:
    """The numbers of rows (None without a Parquet file), bytes and files of an artifact, as a facet."""
    rows = [entry.rows for entry in manifest.files if entry.rows is not None]
    return facet(
        rowCount=sum(rows) if rows else None,
        size=sum(entry.bytes for entry in manifest.files),
        fileCount=len(manifest.files),
        producer=_producer(manifest),
    )


def _producer(manifest: Manifest) -> str:
    return f"urn:erl-pipeline:{manifest.code_version}"
