"""What runners leave: the files of artifacts in a store, and the records on a Prefect server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from prefect.client.schemas.objects import TERMINAL_STATES

from erl_pipeline.config.loading import load_config
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]


def begun(store: Path) -> Path:
    """The store, with the run that small plans are for."""
    config = load_config(ROOT / "configs" / "frozen_lake.yaml", ["name=small"])
    RunStore(str(store)).create("small", config.model_dump(mode="json"))
    return store


def file_hashes(store: Path, artifact_ids: list[str]) -> list[dict[str, str]]:
    """SHA-256 of each file of these artifacts, by its name."""
    artifacts = ArtifactStore(str(store))
    opened = [artifacts.open(each).manifest for each in artifact_ids]
    return [{file.path: file.sha256 for file in manifest.files} for manifest in opened]


def post(api: str, path: str, **body: Any) -> httpx.Response:
    """The answer of a Prefect server, which may take long: its writers wait for SQLite for up to a minute.
    While another process uses its database, it answers 503; then the request is repeated, as in Prefect's own
    client."""

    def answered() -> httpx.Response | None:
        answer = httpx.post(f"{api}/{path}", json=body, timeout=90.0)
        return None if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE else answer

    answer = wait_for(f"an answer to {path}", answered)
    assert answer is not None
    return answer.raise_for_status()


def ask(api: str, what: str, **body: Any) -> list[dict[str, Any]]:
    """What a Prefect server finds by a filter."""
    found: list[dict[str, Any]] = post(api, f"{what}/filter", **body).json()
    return found


def flow_run_of(api: str, store: Path) -> dict[str, Any]:
    """The one flow run that worked on a store."""
    runs = ask(api, "flow_runs", sort="START_TIME_DESC")
    (run,) = [each for each in runs if each["parameters"].get("store") == str(store)]
    return run


def task_runs_of(api: str, flow_run: dict[str, Any]) -> list[dict[str, Any]]:
    """The task runs of a flow run, the first to begin first; of one that has ended, once all of them have.
    The server of a busy machine writes that later than a minute after it was told."""
    ended = {each.value for each in TERMINAL_STATES}
    runs: list[dict[str, Any]] = []

    def written() -> bool:
        runs[:] = ask(api, "task_runs", flow_runs={"id": {"any_": [flow_run["id"]]}})
        return flow_run["state_type"] not in ended or all(run["state_type"] in ended for run in runs)

    wait_for("the last states of the task runs", written)
    return sorted(runs, key=lambda run: str(run["start_time"]))
