"""Metrics of a run that was trained, continued and stopped by the command."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from erl_pipeline.evaluation.history import read_history
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from tests.command_line.invoke import SMALL, FinishedRun, invoke
from tests.erl_pipeline.views.events import scalars, wandb_rows


def numbers_of_the_store(store: Path) -> dict[tuple[str, int], list[object]]:
    """What TensorBoard should show: every number of every manifest, once."""
    expected: dict[tuple[str, int], list[object]] = {}
    for record in read_history(ArtifactStore(str(store)), RunStore(str(store)).open("small")):
        if record.is_part:
            continue
        numbers = {**record.manifest.counters, **record.manifest.metrics, "seconds": record.seconds}
        for name, value in numbers.items():
            if isinstance(value, int | float):
                expected[f"{record.stage}/{name}", record.iteration] = [pytest.approx(value, rel=1e-5)]
    return expected


def test_every_number_of_a_run_is_recorded_once(finished: FinishedRun) -> None:
    recorded = scalars(finished.store / "runs" / "small" / "tensorboard")
    assert recorded == numbers_of_the_store(finished.store)
    assert ("evaluate/greedy_success", 0) in recorded
    assert ("update_policy/policy_loss", 2) in recorded


def test_a_continued_run_writes_no_step_twice(finished: FinishedRun, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(finished.store, store)
    config = tmp_path / "small.yaml"
    config.write_text(SMALL)
    words = ("train", config, "--store", store, "--no-prefect", "--iterations", "3")
    assert invoke(*words, "--set", "metrics=[]").status == 0
    folder = store / "runs" / "small" / "tensorboard"
    assert max(step for _, step in scalars(folder)) == 2

    # With a later end, the third iteration is recorded from the store and the fourth as it is computed.
    assert invoke(*words[:-1], "4").status == 0
    assert scalars(folder) == numbers_of_the_store(store)
    assert max(step for _, step in scalars(folder)) == 4


def test_metrics_change_no_artifact(finished: FinishedRun) -> None:
    words = ("plan", finished.config, "--store", finished.store, "--json")
    assert invoke(*words, "--set", "metrics=[]").json["computed"] == 0
    assert invoke(*words, "--set", "metrics=[]", "--set", "seed=3").json["computed"] > 0


def test_wandb_gets_the_same_numbers_without_a_network(finished: FinishedRun, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    store = tmp_path / "store"
    shutil.copytree(finished.store, store)
    words = ("train", finished.config, "--store", store, "--no-prefect", "--set", "metrics=[wandb]")
    result = invoke(*words, "--iterations", "3")
    assert result.status == 0, result.errors
    expected = numbers_of_the_store(store)
    rows = wandb_rows(store / "runs" / "small" / "wandb")
    found = {(name, row["iteration"]): [value] for row in rows for name, value in row.items() if "/" in name}
    assert found == expected
    assert sum("/" in name for row in rows for name in row) == len(expected)


def test_a_package_that_is_missing_is_a_message(
    finished: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    result = invoke("train", finished.config, "--store", tmp_path, "--no-prefect", "--set", "metrics=[wandb]")
    assert result.status == 2
    assert "metrics: wandb is not installed" in result.errors
