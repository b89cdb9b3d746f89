"""How far a run is, told from its ledger alone: nothing that trains is imported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import ValidationError

from erl_pipeline.config.explain import explain
from erl_pipeline.config.run import RunConfig
from storage.errors import ConfigError, InputError
from storage.memory.standalone import STANDALONE
from storage.runs.ledger import LedgerEntry
from storage.runs.run import Run
from storage.tables.trajectory_import import IMPORTED

CHECKPOINT_STAGES = ("bootstrap", "update_policy", "fine_tune")

_CHAINED = frozenset(
    {
        "prepare_tasks",
        "rollout_shard",
        "generate_rollouts",
        "index_memory",
        "build_distillation",
        *CHECKPOINT_STAGES,
    }
)
"""Stages that later ones follow from. What is forgotten is left out: its recipe follows from the memory's."""


def run_config(run: Run) -> RunConfig:
    """The configuration that a run was begun with.

    Raises ConfigError when this version of the program does not know those settings, InputError for a run
    that was never trained: it holds imported trajectories, or is a memory by itself.
    """
    if IMPORTED in run.config:
        raise InputError(
            f"run {run.name} holds imported trajectories and is not trained; train another run on them with "
            "`replay --offline --config CONFIG --as NAME`"
        )
    if STANDALONE in run.config:
        raise InputError(
            f"{run.name} is a memory by itself, and no training run; look into it with "
            f"`erl-pipeline memory stats {run.name}`"
        )
    try:
        return RunConfig.model_validate(run.config)
    except ValidationError as error:
        problems = "\n  ".join(explain(error, RunConfig, {}))
        raise ConfigError(
            f"run {run.name} was begun with settings of another version:\n  {problems}"
        ) from error


def last_stage(config: RunConfig) -> str:
    """The stage whose checkpoint ends an iteration."""
    return "fine_tune" if config.distillation is not None else "update_policy"


def completed_iterations(config: RunConfig, entries: Iterable[LedgerEntry]) -> int:
    """Iterations whose last checkpoint is committed."""
    stage = last_stage(config)
    return max((entry.iteration or 0 for entry in entries if entry.stage == stage), default=0)


def whole_iterations(config: RunConfig, recorded: Iterable[LedgerEntry]) -> int:
    """The newest iteration whose last checkpoint follows from all that the ledger has before it.

    Less than `completed_iterations` where an earlier artifact was replaced by another, as after a change of
    a stage's code, and what follows from it was not made yet.

    Args:
        recorded: every line of the ledger, the oldest first (`Run.recorded`).
    """
    stage = last_stage(config)
    known: dict[tuple[int, str, str], str] = {}
    whole = 0
    for entry in recorded:
        iteration = entry.iteration or 0
        place = (iteration, entry.stage, entry.key)
        replaced = known.get(place, entry.artifact_id) != entry.artifact_id
        if replaced and entry.stage in _CHAINED:
            whole = min(whole, max(0, iteration - 1))
        if entry.stage == stage:
            whole = max(whole, iteration)
        known[place] = entry.artifact_id
    return whole


def latest_checkpoint(entries: Sequence[LedgerEntry], iteration: int | None = None) -> LedgerEntry | None:
    """The last checkpoint of a run, or of an iteration of it; iteration 0 has the one it began with."""
    found = [
        entry
        for entry in entries
        if entry.stage in CHECKPOINT_STAGES and iteration in (None, entry.iteration or 0)
    ]
    return max(found, key=_age, default=None)


def _age(entry: LedgerEntry) -> tuple[int, int]:
    return entry.iteration or 0, CHECKPOINT_STAGES.index(entry.stage)
