"""Artifacts that a run's ledger names and its store has lost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from erl_pipeline.config.plugins import plugins
from erl_pipeline.plan.plan import Plan, PlannedStage, StageKey
from erl_pipeline.runs.config import method_columns, readable_config
from erl_pipeline.runs.qualification import state_of_qualification, tasks_of_run
from erl_pipeline.runs.state import completed_iterations
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact
from storage.filesystem import open_root
from storage.runs.run import Run


def lost_stages(store: ArtifactStore, plan: Plan, recorded: Mapping[StageKey, str]) -> list[PlannedStage]:
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


REPORTED_ITERATIONS = 100
"""The most iterations with which a run gets its report automatically. Writing a report reads the whole run,
so a longer run gets one only by `erl-pipeline report`."""


def write_run_report(store: ArtifactStore, run: Run, output: Path) -> Path:
    """Write the report of a run as one HTML file; return `output`.

    Raises:
        ConfigError: this version of the program does not know the run's settings.
        InputError: the run holds imported trajectories and was never trained.
        StoreError: an artifact that the ledger names is missing or damaged, or `output` cannot be written.
    """
    from erl_pipeline.views.report.page import RunDescription, write_report

    config = readable_config(run)
    method = plugins("methods")[config.method.type].value
    tasks = tasks_of_run(store, run)
    description = RunDescription(
        columns=method_columns(config),
        roles=method.roles(config.method),
        done=completed_iterations(config, run.stages()),
        environment="" if tasks is None else state_of_qualification(store, tasks)[1],
        config=config,
    )
    return write_report(store, run, description, output)


def renew_report(store: ArtifactStore, run: Run, iterations: int, page: Path) -> Path | None:
    """Write the report of a run again after so many iterations; return `page`.

    Beyond `REPORTED_ITERATIONS` a report takes too long to be written each time. An existing one is then
    removed, so that no report is left that lacks iterations, and None is returned. Raises the errors of
    `write_run_report`.
    """
    if iterations <= REPORTED_ITERATIONS:
        return write_run_report(store, run, page)
    page.unlink(missing_ok=True)
    return None
