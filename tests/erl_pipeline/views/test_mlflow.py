from __future__ import annotations

import shutil
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from mlflow import MlflowClient
from pydantic import BaseModel

from erl_pipeline.views.trackers import Mlflow
from storage.errors import ConfigError, StoreError
from storage.runs.documents import RunWarning
from storage.runs.run import Run, RunStore
from tests.erl_pipeline.views.mlflow_servers import recorded_runs, recorded_scalars, tracking_server
from tests.stage_records import NOON


class Inner(BaseModel):
    rate: float = 0.5
    environment: dict[str, str] = {"TOKEN": "secret"}


class Outer(BaseModel):
    name: str = "first"
    iterations: int = 2
    inner: Inner = Inner()


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file in which MLflow has created its tables, which takes seconds."""
    folder: Path = tmp_path_factory.mktemp("empty")
    MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}").search_experiments()
    return folder / "mlflow.db"


@pytest.fixture
def database(empty_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a new database, which is set as `MLFLOW_TRACKING_URI`."""
    uri = f"sqlite:///{shutil.copy(empty_database, tmp_path / 'shared.db')}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return uri


def begun_run(store: Path, name: str = "first") -> Run:
    run = RunStore(str(store)).create(name, {})
    run.record(1, "evaluate", "id-1", kind="evaluation", reused=False, seconds=3.0)
    return run


def writer(store: Path, run: Run, settings: BaseModel | None = None) -> Mlflow:
    return Mlflow(store / "runs" / run.name, run, str(store), settings or Outer())


def log(tracker: Mlflow, step: int, loss: float, at: datetime = NOON) -> None:
    """The numbers of a stage that took three seconds."""
    tracker.log(step, {"evaluate/loss": loss, "evaluate/tokens": 7, "evaluate/seconds": 3.0}, at)


def test_numbers_settings_and_their_origin_are_in_the_mlflow_run(database: str, tmp_path: Path) -> None:
    with_tokens = writer(tmp_path, begun_run(tmp_path))
    log(with_tokens, 4, 0.25)
    with_tokens.close()

    (run,) = recorded_runs(database)
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert run.data.metrics == {"evaluate/loss": 0.25, "evaluate/tokens": 7.0, "evaluate/seconds": 3.0}
    (point,) = MlflowClient(tracking_uri=database).get_metric_history(run.info.run_id, "evaluate/loss")
    assert (point.step, point.timestamp) == (4, 1767355200000)  # noon, in milliseconds
    assert run.data.params == {
        "name": "first",
        "iterations": "2",
        "inner.rate": "0.5",
        "inner.environment": '["TOKEN"]',  # no other metric has this value
    }
    assert run.data.tags["erl_pipeline.store"] == str(tmp_path)


def test_a_warning_before_the_first_artifact_waits_for_it(database: str, tmp_path: Path) -> None:
    """The identity of an MLflow run is that of its first ledger entry."""
    run = RunStore(str(tmp_path)).create("first", {})
    tracker = writer(tmp_path, run)
    tracker.warn(RunWarning(kind="group_size", iteration=0, text="One.", setting="", said_at=NOON))
    tracker.flush()
    assert recorded_runs(database) == []
    run.record(1, "evaluate", "id-1", kind="evaluation", reused=False, seconds=3.0)
    tracker.close()
    (made,) = recorded_runs(database)
    assert made.data.tags["erl_pipeline.warning.group_size"].startswith("One.")


def test_a_killed_writer_is_continued_and_each_step_stands_once(database: str, tmp_path: Path) -> None:
    run = begun_run(tmp_path)
    killed = writer(tmp_path, run)
    log(killed, 1, 0.5)
    killed.flush()

    continued = writer(tmp_path, RunStore(str(tmp_path)).open("first"), Outer(iterations=3))
    log(continued, 1, 0.5)  # the same artifact, with the time at which it was completed
    log(continued, 2, 0.25, NOON + timedelta(minutes=1))
    continued.flush()

    (found,) = recorded_runs(database)
    assert found.info.status == "RUNNING"
    assert recorded_scalars(database, found) == {
        ("evaluate/loss", 1): [0.5],
        ("evaluate/loss", 2): [0.25],
        ("evaluate/tokens", 1): [7.0],
        ("evaluate/tokens", 2): [7.0],
        ("evaluate/seconds", 1): [3.0],
        ("evaluate/seconds", 2): [3.0],
    }
    assert found.data.params["iterations"] == "2"
    assert found.data.tags["erl_pipeline.continued_with"] == "iterations=3"


def test_more_numbers_than_one_request_takes(database: str, tmp_path: Path) -> None:
    many = writer(tmp_path, begun_run(tmp_path))
    for iteration in range(400):
        log(many, iteration, iteration / 4)
    many.flush()
    (run,) = recorded_runs(database)
    values = recorded_scalars(database, run)
    assert len(values) == 3 * 400
    assert values["evaluate/loss", 399] == [99.75]


def test_the_mark_of_one_start_is_read_by_the_next(database: str, tmp_path: Path) -> None:
    run = RunStore(str(tmp_path)).create("first", {})
    first = writer(tmp_path, run)
    assert first.mark() == ""
    assert recorded_runs(database) == []  # nothing to record yet
    run.record(1, "evaluate", "id-1", kind="evaluation", reused=False, seconds=3.0)
    first.flush("0 abc")
    first.flush("12 def")
    assert writer(tmp_path, run).mark() == "12 def"


def test_a_run_that_is_begun_anew_under_its_name_has_an_mlflow_run_of_its_own(
    database: str, tmp_path: Path
) -> None:
    for loss in (0.5, 0.25):
        anew = writer(tmp_path / "store", begun_run(tmp_path / "store"))
        assert anew.mark() == ""
        log(anew, 1, loss)
        anew.close()
        shutil.rmtree(tmp_path / "store")
    assert [run.data.metrics["evaluate/loss"] for run in recorded_runs(database)] == [0.5, 0.25]


def test_the_experiment_is_the_one_that_mlflows_own_variable_names(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "of the laboratory")
    elsewhere = writer(tmp_path, begun_run(tmp_path))
    log(elsewhere, 1, 0.5)
    elsewhere.close()
    assert len(recorded_runs(database, "of the laboratory")) == 1


def test_a_file_that_cannot_be_written_is_an_error_of_the_store(database: str, tmp_path: Path) -> None:
    run = begun_run(tmp_path)
    broken = writer(tmp_path, run)
    (tmp_path / "shared.db").write_bytes(b"no database")
    log(broken, 1, 0.5)
    with pytest.raises(StoreError, match=r"metrics: MLflow at sqlite:///.*shared\.db failed"):
        broken.flush()
    broken.close()  # and does not fail again


def test_without_an_address_the_runs_folder_must_be_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = begun_run(tmp_path)
    (tmp_path / "file").write_text("where the run's folder should be")
    with pytest.raises(StoreError, match="cannot write"):
        Mlflow(tmp_path / "file", run, str(tmp_path), Outer())


def test_without_the_package_the_setting_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ConfigError, match="mlflow is not installed: pip install mlflow-skinny"):
        writer(tmp_path, begun_run(tmp_path))


@pytest.mark.slow
def test_a_tracking_server_gets_the_numbers_and_its_end_is_an_error(
    empty_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server").mkdir()
    shutil.copy(empty_database, tmp_path / "server")
    run = begun_run(tmp_path)
    with tracking_server(tmp_path / "server") as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address.replace("//", "//me:password@"))
        first = writer(tmp_path, run)
        log(first, 1, 0.5)
        first.flush()
        again = writer(tmp_path, run)
        log(again, 1, 0.5)
        again.flush()
        (found,) = recorded_runs(address)
        assert recorded_scalars(address, found)["evaluate/loss", 1] == [0.5]
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    log(again, 2, 0.25)
    with pytest.raises(StoreError, match=f"metrics: MLflow at {address} failed: .*[Cc]onnection") as failure:
        again.flush()
    assert "password" not in str(failure.value)
    with pytest.raises(StoreError, match=f"metrics: MLflow at {address} failed"):
        writer(tmp_path, run)
