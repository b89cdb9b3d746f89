"""Where a run's local files lie, and whether there is anything left to train."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from storage.filesystem import open_root

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from storage.runs.run import Run


def run_folder(store_uri: str, run_name: str) -> Path:
    """The local folder for files of a run that are not artifacts, such as its report and Prefect's log."""
    return open_root(store_uri).scratch / "runs" / run_name


def beyond_end(run: Run, span: tuple[int, int] | None) -> str:
    """That a span begins after a run's last iteration; empty if it does not."""
    last = max((entry.iteration or 0 for entry in run.stages()), default=0)
    return f"run {run.name} ends with iteration {last}" if span is not None and span[0] > last else ""


def find_finished_run(config: RunConfig, store_uri: str, iterations: int) -> Run | None:
    """The run of `config`, if its ledger has all of the plan and the last iteration's artifacts are intact.

    Their files are hashed again. If one is damaged the result is None: training, which also checks them, then
    reports it and makes it again. Of artifacts of earlier iterations only the manifests are looked at.
    """
    from erl_pipeline.runs.config import refuse_other_settings
    from erl_pipeline.runs.planning import plan_for, recorded_ids
    from erl_pipeline.runs.report import lost_stages
    from storage.artifacts.store import ArtifactStore
    from storage.errors import InputError, StoreError
    from storage.runs.run import RunStore

    runs = RunStore(store_uri)
    if config.name not in runs.list():
        return None
    run = runs.open(config.name)
    entries = run.recorded()
    if not entries:
        return None
    refuse_other_settings(run, config)
    recorded = recorded_ids(entries)
    plan = plan_for(store_uri, run, config, iterations, entries=entries)
    if any(recorded.get(node.place) != node.artifact_id for node in plan.nodes):
        return None
    store = ArtifactStore(store_uri)
    try:
        if lost_stages(store, plan, recorded):
            return None
        for node in plan.of_iteration(iterations):
            store.open(node.artifact_id)
    except (InputError, StoreError):
        return None
    return run
