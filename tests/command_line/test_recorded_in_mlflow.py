"""A run that is trained and continued by the command, as MLflow shows it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.command_line.invoke import FinishedRun, invoke
from tests.command_line.test_recorded_metrics import numbers_of_the_store
from tests.erl_pipeline.views.mlflow_servers import recorded_runs, recorded_scalars


@pytest.mark.slow
def test_mlflow_has_every_number_of_a_continued_run_once(
    finished: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    store = tmp_path / "store"
    shutil.copytree(finished.store, store)
    words = ("train", finished.config, "--store", store, "--no-prefect", "--set", "metrics=[mlflow]")
    uri = f"sqlite:///{store / 'runs' / 'small' / 'mlflow.db'}"
    for target in ("3", "4"):
        result = invoke(*words, "--iterations", target)
        assert result.status == 0, result.errors
        (run,) = recorded_runs(uri)
        assert recorded_scalars(uri, run) == numbers_of_the_store(store)
    assert run.data.params["environment.rows"] == "[3, 3]"


def test_a_tracking_server_that_does_not_answer_is_a_message(
    finished: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")  # no server has this port
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    store = tmp_path / "store"
    shutil.copytree(finished.store, store)
    result = invoke(
        "train", finished.config, "--store", store, "--no-prefect", "--iterations", "3",
        "--set", "metrics=[mlflow]",
    )  # fmt: skip
    assert result.status == 2
    assert "metrics: MLflow at http://127.0.0.1:1 failed" in result.errors
