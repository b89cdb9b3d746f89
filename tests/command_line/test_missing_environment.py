"""A finished run whose environment is not installed any more: it is read as before, and not continued."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from transformers import AutoTokenizer

from command_line.ui.access import access_for
from command_line.ui.app import create_app
from storage.artifacts.sealing import record_bytes
from storage.runs.run import RunStore
from tests.command_line.invoke import FinishedRun, invoke

NOT_INSTALLED = "run small was begun with environment gone, which no installed package provides"


@pytest.fixture(scope="module")
def store(finished: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the finished run's store; the record of the run names another environment."""
    copy = tmp_path_factory.mktemp("gone") / "store"
    shutil.copytree(finished.store, copy)
    path = copy / "runs" / "small" / "run.json"
    config = json.loads(path.read_text())["config"]
    config["environment"]["type"] = "gone"
    path.write_bytes(record_bytes({"name": "small", "config": config}))
    return copy


def test_status_and_the_list_of_runs_are_the_same(finished: FinishedRun, store: Path) -> None:
    before = invoke("status", "small", "--store", finished.store, "--json").json
    now = invoke("status", "small", "--store", store, "--json").json
    assert now["iterations_done"] == 2
    assert {**now, "store": ""} == {**before, "store": ""}
    (row,) = invoke("runs", "list", "--store", store, "--json").json
    assert (row["run"], row["state"], row["iterations_done"]) == ("small", "finished", 2)


def test_the_report_has_the_same_figures(finished: FinishedRun, store: Path, tmp_path: Path) -> None:
    for name, of in (("before", finished.store), ("now", store)):
        words = ["report", "small", "--store", of, "--output", tmp_path / f"{name}.html"]
        assert invoke(*words).status == 0
    before, now = (
        re.findall(r"<td[^>]*>[^<]*</td>", (tmp_path / f"{name}.html").read_text())
        for name in ("before", "now")
    )
    assert len(now) > 20
    assert now == before


def test_checkpoints_are_found_by_iteration_and_by_id(store: Path, tmp_path: Path) -> None:
    entries = RunStore(str(store)).open("small").stages()
    made = {(entry.stage, entry.iteration): entry.artifact_id for entry in entries}
    for checkpoint, artifact_id in (
        ("latest", made["fine_tune", 2]),
        ("iteration:0", made["bootstrap", None]),
        (made["update_policy", 1][:12], made["update_policy", 1]),
    ):
        output = tmp_path / checkpoint.replace(":", "-")
        words = ["export", "small", "--checkpoint", checkpoint, "--output", output, "--store", store]
        assert invoke(*words, "--json").json["checkpoint"] == artifact_id
        AutoTokenizer.from_pretrained(output)


def test_the_memory_is_listed(finished: FinishedRun, store: Path) -> None:
    before = invoke("memory", "list", "small", "--store", finished.store)
    assert invoke("memory", "list", "small", "--store", store).output == before.output


def test_its_page_shows_an_episode_without_a_picture_and_names_the_package_for_the_plan(store: Path) -> None:
    page = TestClient(create_app(str(store), access_for("127.0.0.1")), base_url="http://127.0.0.1")
    assert page.get("/runs/small").status_code == 200
    (episode, *_) = invoke("episodes", "list", "small", "--store", store, "--json").json["shown"]
    shown = page.get(f"/runs/small/iterations/{episode['iteration']}/episodes/{episode['episode_id']}")
    assert "Environment gone, which draws this task, cannot be used here." in shown.text
    assert NOT_INSTALLED in page.get("/runs/small/plan").text


@pytest.mark.parametrize(
    "words",
    [("plan", "small"), ("replay", "small", "--from", "update_policy", "--iteration", "1")],
)
def test_it_is_not_continued(store: Path, words: tuple[str, ...]) -> None:
    refused = invoke(*words, "--store", store)
    assert (refused.status, NOT_INSTALLED in refused.errors) == (2, True), refused.errors
