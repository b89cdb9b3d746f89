"""A run's numbers as a Weights & Biases run, offline: nothing is sent."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from erl_pipeline.views.trackers.writer import stage_numbers
from storage.artifacts.manifest import Manifest
from storage.errors import ConfigError
from storage.runs.warnings import RunWarning


class WandbWriter:
    """An offline run in `wandb` under a run's folder; an older one is replaced.

    Nothing can be removed from an offline run, so each start writes all that the run has. That takes about
    two milliseconds for each iteration.

    `wandb sync store/runs/NAME/wandb/latest-run` sends it to your account when the run has ended.

    Raises ConfigError when wandb is not installed.
    """

    def __init__(self, run_folder: Path, run_name: str) -> None:
        # wandb reports its errors to its makers unless this is set before the import.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        try:
            import wandb
        except ModuleNotFoundError as error:
            raise ConfigError(
                "metrics: wandb is not installed: pip install wandb, or take it out of metrics"
            ) from error
        folder = run_folder / "wandb"
        if folder.exists():
            shutil.rmtree(folder)
        settings = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True)
        settings.x_disable_stats = True  # A thread would collect statistics of the machine.
        self._run = wandb.init(
            mode="offline", dir=str(run_folder), project="erl-pipeline", name=run_name, settings=settings
        )
        # wandb's own steps can only increase, but a damaged artifact is made again out of order.
        self._run.define_metric("*", step_metric="iteration")

    def write(self, iteration: int, manifest: Manifest) -> None:
        """Add one row for the stage."""
        self._run.log({"iteration": iteration, **stage_numbers(manifest)})

    def warn(self, warning: RunWarning) -> None:
        """Put the warning into the run's summary."""
        self._run.summary[f"warnings/{warning.kind}"] = warning.sentence

    def flush(self) -> None:
        """Do nothing: wandb writes by itself."""

    def close(self) -> None:
        """Write what is left, and end the run."""
        self._run.finish()
