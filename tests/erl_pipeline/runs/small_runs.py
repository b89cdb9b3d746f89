"""Small real runs in this process, and functions that read their stores."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.plan import StageKey
from erl_pipeline.plan.stage import Listener, StageOutcome
from erl_pipeline.runs.driver import OpenRun, open_run
from erl_pipeline.runs.train import train
from storage.artifacts.store import ArtifactStore
from storage.errors import Interrupted
from storage.runs.run import RunStore

SMALL: dict[str, Any] = {
    "name": "small",
    "iterations": 2,
    "resources": {"threads": 1},
    "runner": {"type": "in_process"},
    "metrics": [],
    # So small a run learns nothing, and would give warnings about it.
    "warnings": {"no_advantage": None, "ill_formed": None, "cut_off": None},
    "environment": {
        "type": "frozen_lake",
        "training_boards": 16,
        "rows": [3, 3],
        "path_length": [1, 2],
        "max_steps": 2,
    },
    "policy": {
        "type": "tiny",
        "layers": 1,
        "cold_start": {"steps": 4, "demonstrations_per_step": 4, "gate": 0},
    },
    "rollouts": {"tasks_per_iteration": 2, "group_size": 2, "tasks_per_shard": 1},
    # Groups of two are not split.
    "objective": {"advantages_per": "group"},
    "fine_tune": {"steps": 1},
    "evaluation": {"tasks": 2, "every": 2, "samples_per_task": 1},
}
DECOUPLED = {"objective": {"advantages_per": "group", "correction": {"type": "decoupled"}}}


def small(**changes: Any) -> RunConfig:
    """The configuration of a run whose iterations take a moment."""
    return RunConfig.model_validate({**SMALL, **changes})


class Notes(Listener):
    """A listener that records its calls, and requests a stop after the stage with a given title."""

    def __init__(self, stop_after: str | None = None) -> None:
        self.warnings: list[str] = []
        self.made: list[str] = []
        self.reused: list[str] = []
        self.stop = threading.Event()
        self._stop_after = stop_after

    def stage_finished(self, title: str, outcome: StageOutcome) -> None:
        (self.reused if outcome.reused else self.made).append(title)
        if title == self._stop_after:
            self.stop.set()

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def go(
    config: RunConfig,
    store: Path,
    iterations: int | None = None,
    *,
    check: bool = False,
    begin: Callable[[OpenRun], None] | None = None,
    stop_after: str | None = None,
) -> Notes:
    """Train as a new process would; with `stop_after` the run is stopped after that stage."""
    notes = Notes(stop_after)
    with open_run(config, str(store), notes, notes.stop) as opened:
        if begin is not None:
            begin(opened)
        if stop_after is None:
            train(opened, iterations, check=check)
        else:
            with pytest.raises(Interrupted):
                train(opened, iterations, check=check)
    return notes


def ids(store: Path, run: str = "small") -> dict[StageKey, str]:
    """The newest artifact in a run's ledger at each place."""
    entries = RunStore(str(store)).open(run).stages()
    return {StageKey(entry.iteration or 0, entry.stage, entry.key): entry.artifact_id for entry in entries}


def hashes(store: Path, run: str = "small") -> dict[str, dict[str, str]]:
    """The SHA-256 of each file of a run's artifacts, by their ids."""
    artifacts = ArtifactStore(str(store))
    return {
        artifact_id: {file.path: file.sha256 for file in artifacts.open(artifact_id).manifest.files}
        for artifact_id in ids(store, run).values()
    }


def damage(store: Path, iteration: int, stage: str, key: str = "") -> Path:
    """Truncate an artifact's first file; returns the file."""
    folder = store / "artifacts" / stage / ids(store)[StageKey(iteration, stage, key)]
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    files[0].write_bytes(files[0].read_bytes()[:-1])
    return files[0]
