"""How far a run is, told from ledgers written by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from erl_pipeline.config.run import RunConfig
from erl_pipeline.pipeline.run_state import (
    completed_iterations,
    latest_checkpoint,
    run_config,
    whole_iterations,
)
from storage.errors import ConfigError, InputError
from storage.runs.ledger import LedgerEntry
from storage.runs.run import RunStore

STAGES = ("generate_rollouts", "index_memory", "update_policy", "build_distillation", "fine_tune")
SMALL = {
    "name": "small",
    "iterations": 3,
    "environment": {"type": "frozen_lake"},
    "policy": {"type": "tiny"},
}
ERL = RunConfig.model_validate(SMALL)
RLVR = RunConfig.model_validate({**SMALL, "method": "rlvr"})
"""RLVR makes no distillation dataset, so that its last stage is the policy update."""


def line(iteration: int | None, stage: str, artifact_id: str = "first") -> LedgerEntry:
    return LedgerEntry(
        iteration=iteration,
        stage=stage,
        kind="table",
        key="",
        artifact_id=f"{artifact_id} {stage} {iteration}",
        reused=False,
        seconds=0.0,
        recorded_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def lines(iterations: Sequence[int], artifact_id: str = "first") -> list[LedgerEntry]:
    return [line(iteration, stage, artifact_id) for iteration in iterations for stage in STAGES]


BEGUN = [line(None, "prepare_tasks"), line(None, "bootstrap"), line(0, "evaluate")]
THREE = [*BEGUN, *lines([1, 2, 3])]


def test_an_iteration_is_complete_with_its_last_checkpoint() -> None:
    assert completed_iterations(ERL, THREE) == 3
    assert completed_iterations(ERL, THREE[:-1]) == 2
    assert completed_iterations(RLVR, THREE[:-1]) == 3
    assert completed_iterations(ERL, []) == 0


def test_the_latest_checkpoint_is_that_of_the_last_training_stage() -> None:
    checkpoints = {
        iteration: found.artifact_id
        for iteration in (0, 1, 3, None)
        if (found := latest_checkpoint(THREE, iteration)) is not None
    }
    assert checkpoints == {
        0: "first bootstrap None",
        1: "first fine_tune 1",
        3: "first fine_tune 3",
        None: "first fine_tune 3",
    }
    assert latest_checkpoint(THREE, 4) is None
    assert latest_checkpoint([]) is None


def test_a_run_is_whole_through_its_last_complete_iteration() -> None:
    assert whole_iterations(ERL, THREE) == 3
    assert whole_iterations(ERL, [*THREE, *lines([4])[:-1]]) == 3
    assert whole_iterations(ERL, BEGUN) == 0


def test_what_followed_from_an_artifact_that_was_replaced_is_not_whole() -> None:
    replaced = line(2, "update_policy", "second")
    assert whole_iterations(ERL, [*THREE, replaced]) == 1
    assert whole_iterations(ERL, [*THREE, *lines([2], "second")]) == 2
    assert whole_iterations(ERL, [*THREE, *lines([2, 3], "second")]) == 3
    assert whole_iterations(ERL, [*THREE, line(None, "bootstrap", "second")]) == 0


def test_an_artifact_that_was_made_again_or_that_nothing_follows_from_leaves_the_run_whole() -> None:
    assert whole_iterations(ERL, [*THREE, line(1, "update_policy")]) == 3
    assert whole_iterations(ERL, [*THREE, line(0, "evaluate", "second")]) == 3


def test_settings_of_another_version_and_imports_are_refused(tmp_path: Path) -> None:
    runs = RunStore(str(tmp_path))
    with pytest.raises(ConfigError, match="settings of another version"):
        run_config(runs.create("old", {"name": "old", "of_old": 1}))
    with pytest.raises(InputError, match="holds imported trajectories"):
        run_config(runs.create("from-a-file", {"imported": {"file": "a.parquet"}}))
    with pytest.raises(InputError, match=r"kitchen is a memory by itself.*memory stats kitchen"):
        run_config(runs.create("kitchen", {"standalone": True, "memory": {"embedding_model": "words"}}))


def test_nothing_that_trains_is_imported() -> None:
    code = "import sys, erl_pipeline.pipeline.run_state; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
