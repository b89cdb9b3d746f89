"""The run that a replay starts from, and checks before the replay begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from erl_pipeline.config.run import RunConfig
from erl_pipeline.runs.config import run_config
from erl_pipeline.runs.state import completed_iterations
from storage.errors import InputError
from storage.runs.run import Run, RunStore


@dataclass(frozen=True)
class StoredRun:
    """The run to start from, its configuration, and how many iterations it has."""

    run: Run
    config: RunConfig
    done: int

    @classmethod
    def open(cls, name: str, store: str) -> StoredRun:
        """Open a run of the store. Raises InputError for an unknown name."""
        run = RunStore(store).open(name)
        config = run_config(run)
        return cls(run, config, completed_iterations(config, run.stages()))

    def require_iteration(self, iteration: int) -> None:
        """Raise InputError for an iteration after the end of the run."""
        if iteration > self.done:
            raise InputError(
                f"--iteration {iteration}: run {self.run.name} ended in iteration {self.done}"
                + (f"; 1 to {self.done} are allowed" if self.done else "")
            )


def require_other_name(run: str, name: str) -> None:
    """Raise InputError when a new run would have the same name as the run that it starts from."""
    if run == name:
        raise InputError(f"--name {name}: stored artifacts are never replaced; give the new run another name")


def own_settings(settings: Sequence[str]) -> list[str]:
    """The user's overrides. Raises InputError for those that have an option of this command."""
    options = {"name": "--name", "iterations": "--iterations"}
    for setting in settings:
        option = options.get(setting.partition("=")[0].strip())
        if option:
            raise InputError(f"--set {setting}: use {option}")
    return list(settings)
