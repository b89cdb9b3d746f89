"""Training on Prefect: the same artifacts as without it, and a record of it on the server."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from erl_pipeline.config.load import load_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.engines.interface import Interrupted
from erl_pipeline.pipeline.context import RunContext, open_context
from erl_pipeline.pipeline.outcome import Silent, StageOutcome
from erl_pipeline.pipeline.train import train
from flows.runner import PrefectRunner, call_as_flow
from flows.training import train_with_prefect
from storage.artifacts.store import ArtifactStore
from storage.errors import EngineError, InputError
from storage.runs.run import RunStore
from tests.command_line.invoke import SMALL


@dataclass
class Trained:
    """One configuration trained twice: with Prefect and without."""

    with_prefect: Path
    directly: Path


class Warnings(Silent):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def warn(self, message: str) -> None:
        self.messages.append(message)


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    path = tmp_path_factory.mktemp("flows") / "small.yaml"
    path.write_text(SMALL)
    return load_config(path, ["name=Small_flow", "policy.cold_start.steps=8"])


@pytest.fixture(scope="session")
def trained(api: str, config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    with_prefect, directly = folder / "with_prefect", folder / "directly"
    with open_context(config, str(with_prefect), Silent(), threading.Event()) as context:
        assert train_with_prefect(context, None, folder / "prefect.log").iterations == 2
    with open_context(config, str(directly), Silent(), threading.Event()) as context:
        train(context)
    return Trained(with_prefect, directly)


def file_hashes(store: Path) -> dict[str, dict[str, str]]:
    artifacts = ArtifactStore(str(store))
    entries = RunStore(str(store)).open("Small_flow").stages()
    manifests = [artifacts.open(entry.artifact_id).manifest for entry in entries]
    return {
        manifest.artifact_id: {file.path: file.sha256 for file in manifest.files} for manifest in manifests
    }


def ask(api: str, what: str, **body: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.post(f"{api}/{what}/filter", json=body).raise_for_status().json()
    return found


def runs_of_flow(api: str, name: str) -> list[dict[str, Any]]:
    return ask(api, "flow_runs", flows={"name": {"any_": [name]}}, sort="START_TIME_ASC")


def test_prefect_changes_no_byte(trained: Trained) -> None:
    assert file_hashes(trained.with_prefect) == file_hashes(trained.directly)


def test_the_run_its_iterations_and_its_stages_are_on_the_page(api: str, trained: Trained) -> None:
    (training,) = [run for run in runs_of_flow(api, "training") if run["name"] == "Small_flow"]
    assert training["state_type"] == "COMPLETED"
    assert training["parameters"]["parameters"]["store"] == str(trained.with_prefect)
    iterations = [run for run in runs_of_flow(api, "iteration") if run["name"].startswith("Small_flow")]
    assert [(run["name"], run["state_type"]) for run in iterations] == [
        ("Small_flow 1", "COMPLETED"),
        ("Small_flow 2", "COMPLETED"),
    ]
    tasks = ask(api, "task_runs", flow_runs={"id": {"any_": [iterations[0]["id"]]}})
    assert sorted((run["name"].rsplit("-", 1)[0], run["state_type"]) for run in tasks) == [
        ("build_distillation", "COMPLETED"),
        ("evaluate", "COMPLETED"),
        ("fine_tune", "COMPLETED"),
        ("generate_rollouts", "COMPLETED"),
        ("index_memory", "COMPLETED"),
        ("rollout_shard", "COMPLETED"),
        ("rollout_shard", "COMPLETED"),
        ("update_policy", "COMPLETED"),
    ]


def test_the_table_of_iterations_and_a_summary_are_artifacts_of_the_flow_run(
    api: str, trained: Trained
) -> None:
    artifacts = ask(api, "artifacts", artifacts={"key": {"like_": "small-flow"}})
    tables = [artifact for artifact in artifacts if artifact["key"] == "small-flow-iterations"]
    assert len(tables) == 2
    longest = max((table["data"] for table in tables), key=len)
    assert '"iter": "0"' in longest
    assert '"iter": "2"' in longest
    (summary,) = [artifact for artifact in artifacts if artifact["key"] == "small-flow-summary"]
    assert "- iterations: 2" in summary["data"]


@pytest.fixture
def open_run(config: RunConfig, tmp_path: Path) -> Callable[[Warnings], Any]:
    return lambda listener: open_context(config, str(tmp_path), listener, threading.Event())


def done(context: RunContext, item: int) -> StageOutcome:
    return StageOutcome("rollout_shard", 1, f"artifact {item}", False, 0.0, {}, {})


@pytest.mark.usefixtures("api")
def test_a_shard_that_an_engine_failed_is_tried_again(open_run: Callable[[Warnings], Any]) -> None:
    calls: list[int] = []

    def fails_once(context: RunContext, item: int) -> StageOutcome:
        calls.append(item)
        if calls.count(2) == 1 and item == 2:
            raise EngineError("the server went away")
        return done(context, item)

    listener = Warnings()
    with open_run(listener) as context:
        runner = PrefectRunner(context)
        outcomes = call_as_flow(
            "test", "retry", lambda: runner.map("rollout_shard", fails_once, context, [1, 2]), {}
        )
    assert [outcome.artifact_id for outcome in outcomes] == ["artifact 1", "artifact 2"]
    assert sorted(calls) == [1, 2, 2]
    assert listener.messages == ["rollout_shard failed and is tried again: the server went away"]


@pytest.mark.usefixtures("api")
def test_a_shard_with_bad_input_is_not_tried_again(open_run: Callable[[Warnings], Any]) -> None:
    calls: list[int] = []

    def fails(context: RunContext, item: int) -> StageOutcome:
        calls.append(item)
        raise InputError("no such thing")

    with open_run(Warnings()) as context:
        runner = PrefectRunner(context)
        with pytest.raises(InputError, match="no such thing"):
            call_as_flow("test", "bad input", lambda: runner.map("rollout_shard", fails, context, [1]), {})
    assert calls == [1]


def test_a_flow_that_was_asked_to_stop_is_cancelled_and_says_so(api: str) -> None:
    def stopped() -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        call_as_flow("test", "stopped", stopped, {"a": 1})
    (run,) = [run for run in runs_of_flow(api, "test") if run["name"] == "stopped"]
    assert run["state_type"] == "CANCELLED"


def test_a_run_that_goes_on_shows_its_earlier_iterations_without_doing_them_as_flows(
    api: str, config: RunConfig, trained: Trained, tmp_path: Path
) -> None:
    before = {run["id"] for run in runs_of_flow(api, "iteration")}
    store = tmp_path / "store"
    shutil.copytree(trained.directly, store)
    with open_context(config, str(store), Silent(), threading.Event()) as context:
        train_with_prefect(context, 3, tmp_path / "prefect.log")
    (iteration,) = [run for run in runs_of_flow(api, "iteration") if run["id"] not in before]
    assert iteration["name"] == "Small_flow 3"
    tables = ask(
        api, "artifacts", artifacts={"key": {"any_": ["small-flow-iterations"]}}, sort="CREATED_DESC"
    )
    rows = json.loads(tables[0]["data"])
    assert [row["iter"] for row in rows] == ["0", "1", "2", "3"]
    assert all(row["RL loss"] for row in rows[1:])
