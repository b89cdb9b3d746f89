"""A run as the command line sees it: where its files lie, and whether there is anything left to train."""

from __future__ import annotations

from pathlib import Path

from erl_pipeline.config.run import RunConfig
from erl_pipeline.pipeline.run_state import run_config, whole_iterations
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError, StoreError
from storage.filesystem import open_root
from storage.runs.run import Run, RunStore, config_differences, latest_entries


def run_folder(store_uri: str, run_name: str) -> Path:
    """Where what belongs to a run but is no artifact lies on this machine: its report, Prefect's log."""
    return open_root(store_uri).scratch / "runs" / run_name


def find_finished_run(config: RunConfig, store_uri: str, iterations: int) -> Run | None:
    """The run of `config`, if it has been through `iterations` and the artifacts of the last are whole.

    Their files are hashed again; where one is damaged the answer is no, and training, which looks at them
    too, names it and makes it again. Those of earlier iterations are not looked at.
    """
    runs = RunStore(store_uri)
    if config.name not in runs.list():
        return None
    run = runs.open(config.name)
    asked = config.model_copy(update=run_config(run).model_dump(include={"iterations", "metrics", "threads"}))
    if config_differences(run.config, asked.model_dump(mode="json")):
        return None
    recorded = run.recorded()
    newest = [entry for entry in latest_entries(recorded) if entry.iteration == iterations]
    if whole_iterations(config, recorded) < iterations or not any(e.stage == "evaluate" for e in newest):
        return None
    store = ArtifactStore(store_uri)
    try:
        for entry in newest:
            store.open(entry.artifact_id)
    except (InputError, StoreError):
        return None
    return run
