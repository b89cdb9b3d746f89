"""MLflow's tracking server in a process, and functions that read the runs in MLflow."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from mlflow import MlflowClient
from mlflow.entities import Run

from tests.waiting import wait_for


@contextmanager
def tracking_server(folder: Path) -> Iterator[str]:
    """The address of an `mlflow server` on the loopback interface, which keeps its runs in the folder."""
    folder.mkdir(exist_ok=True)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--workers=1", "--host=127.0.0.1", f"--port={port}"]
    with (folder / "log").open("ab") as log:
        server = subprocess.Popen(
            [*command, f"--backend-store-uri=sqlite:///{folder / 'mlflow.db'}"],
            cwd=folder,
            env={
                **os.environ,
                "MLFLOW_DISABLE_TELEMETRY": "true",
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # jobs of judges that are language models
            },
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for("the MLflow server", lambda: _answers(address, server, folder / "log"), interval=0.2)
        yield address
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _answers(address: str, server: subprocess.Popen[bytes], log: Path) -> bool:
    assert server.poll() is None, log.read_text()
    try:
        return httpx.get(f"{address}/health", trust_env=False).is_success
    except httpx.TransportError:
        return False


def recorded_runs(uri: str, experiment: str = "erl-pipeline") -> list[Run]:
    """The runs in MLflow, the oldest first."""
    client = MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    return list(client.search_runs([found.experiment_id], order_by=["attributes.start_time"]))


def recorded_scalars(uri: str, run: Run) -> dict[tuple[str, int], list[float]]:
    """The values under each name and step."""
    client = MlflowClient(tracking_uri=uri)
    values: dict[tuple[str, int], list[float]] = {}
    for name in run.data.metrics:
        for point in client.get_metric_history(run.info.run_id, name):
            values.setdefault((name, point.step), []).append(point.value)
    return values
