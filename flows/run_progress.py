"""How far a run is, told from its ledger."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from erl_pipeline.config.run import RunConfig
from storage.errors import ConfigError, InputError
from storage.ledger import LedgerEntry
from storage.runs import Run

_CHECKPOINT_STAGES = ("bootstrap", "update_policy", "fine_tune")


def configuration_of(run: Run) -> RunConfig:
    """The configuration that a run was begun with. Raises ConfigError when this version does not know it."""
    try:
        return RunConfig.model_validate(run.config)
    except ValidationError as error:
        raise ConfigError(f"run {run.name} was begun with settings of another version: {error}") from error


def last_stage(config: RunConfig) -> str:
    """The stage whose checkpoint ends an iteration."""
    return "fine_tune" if config.distillation is not None else "update_policy"


def iterations_done(config: RunConfig, entries: Sequence[LedgerEntry]) -> int:
    """Iterations whose last checkpoint is committed."""
    stage = last_stage(config)
    return max((entry.iteration or 0 for entry in entries if entry.stage == stage), default=0)


def newest_checkpoint(run: Run, entries: Sequence[LedgerEntry]) -> LedgerEntry:
    """The ledger's entry of a run's last checkpoint. Raises InputError when the run has none yet."""

    def age(entry: LedgerEntry) -> tuple[int, int]:
        return entry.iteration or 0, _CHECKPOINT_STAGES.index(entry.stage)

    found = [entry for entry in entries if entry.stage in _CHECKPOINT_STAGES]
    if not found:
        raise InputError(f"run {run.name} has no checkpoint yet; train it first")
    return max(found, key=age)
