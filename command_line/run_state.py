"""How far a run is, told from its ledger and the store alone: nothing that trains is imported."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from erl_pipeline.config.explain import explain
from erl_pipeline.config.run import RunConfig
from storage.artifacts import ArtifactStore
from storage.errors import ConfigError, InputError, StoreError
from storage.filesystem import open_root
from storage.foreign_rows import IMPORTED
from storage.ledger import LedgerEntry
from storage.runs import Run, RunStore, config_differences

CHECKPOINT_STAGES = ("bootstrap", "update_policy", "fine_tune")


def run_folder(store_uri: str, run_name: str) -> Path:
    """Where what belongs to a run but is no artifact lies on this machine: its report, Prefect's log."""
    return open_root(store_uri).scratch / "runs" / run_name


def run_config(run: Run) -> RunConfig:
    """The configuration that a run was begun with.

    Raises ConfigError when this version of the program does not know those settings, InputError for a run
    that holds imported trajectories and was never trained.
    """
    if IMPORTED in run.config:
        raise InputError(
            f"run {run.name} holds imported trajectories and is not trained; train another run on them with "
            "`replay --offline --config CONFIG --as NAME`"
        )
    try:
        return RunConfig.model_validate(run.config)
    except ValidationError as error:
        problems = "\n  ".join(explain(error, RunConfig, {}))
        raise ConfigError(
            f"run {run.name} was begun with settings of another version:\n  {problems}"
        ) from error


def latest_checkpoint(entries: list[LedgerEntry], iteration: int | None = None) -> LedgerEntry | None:
    """The last checkpoint of a run, or of an iteration of it; iteration 0 has the one it began with."""
    found = [
        entry
        for entry in entries
        if entry.stage in CHECKPOINT_STAGES and iteration in (None, entry.iteration or 0)
    ]
    return max(found, key=_age, default=None)


def _age(entry: LedgerEntry) -> tuple[int, int]:
    return entry.iteration or 0, CHECKPOINT_STAGES.index(entry.stage)


def completed_iterations(config: RunConfig, entries: list[LedgerEntry]) -> int:
    """Iterations whose last checkpoint is committed."""
    last_stage = "fine_tune" if config.distillation is not None else "update_policy"
    return max((entry.iteration or 0 for entry in entries if entry.stage == last_stage), default=0)


def find_finished_run(config: RunConfig, store_uri: str, iterations: int) -> Run | None:
    """The run of `config`, if it has been through `iterations` and all its artifacts are whole.

    Every file is hashed again; for a run with a damaged artifact the answer is no, and training, which
    looks at every artifact too, names it and makes it again.
    """
    runs = RunStore(store_uri)
    if config.name not in runs.list():
        return None
    run = runs.open(config.name)
    asked = config.model_copy(update=run_config(run).model_dump(include={"iterations", "metrics", "threads"}))
    if config_differences(run.config, asked.model_dump(mode="json")):
        return None
    entries = run.stages()
    if not any(entry.stage == "evaluate" and entry.iteration == iterations for entry in entries):
        return None
    store = ArtifactStore(store_uri)
    try:
        for entry in entries:
            store.open(entry.artifact_id)
    except (InputError, StoreError):
        return None
    return run
