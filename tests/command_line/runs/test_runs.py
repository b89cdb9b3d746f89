"""`erl-pipeline runs` on a small run that was trained, and a branch of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from erl_pipeline.stages.columns import HELD_OUT
from storage.artifacts.sealing import record_bytes
from storage.runs.run import RunStore
from tests.command_line.invoke import FinishedRun, invoke


@pytest.fixture
def store(finished: FinishedRun, tmp_path: Path) -> Path:
    shutil.copytree(finished.store, tmp_path / "store")
    return tmp_path / "store"


def test_list_tells_state_score_and_size(store: Path, finished: FinishedRun) -> None:
    RunStore(str(store)).create("begun", RunStore(str(store)).open("small").config | {"name": "begun"})
    (begun, small) = invoke("runs", "list", "--store", store, "--json").json
    assert (begun["state"], begun["own_bytes"], begun["score"]) == ("begun", 0, None)
    assert (small["state"], small["method"], small["worked_on_by"]) == ("finished", "erl", None)
    assert (small["iterations_done"], small["iterations_configured"]) == (2, 2)
    rows = invoke("status", "small", "--store", store, "--json").json["rows"]
    assert small["score"]["iteration"] == 2
    assert small["score"]["success"] == rows[2][HELD_OUT.name]
    assert small["score"]["low"] <= small["score"]["success"] <= small["score"]["high"]
    files = (path for path in (store / "artifacts").rglob("*") if path.is_file())
    assert small["own_bytes"] == sum(path.stat().st_size for path in files)
    text = invoke("runs", "list", "--store", store).output
    assert text.startswith(f"Store {store}: 2 runs\n")
    assert "2 of 2" in text


def test_a_run_that_was_stopped_beyond_its_configuration_is_not_finished(store: Path) -> None:
    run = RunStore(str(store)).open("small")
    shard = next(entry for entry in run.stages() if entry.stage == "rollout_shard")
    with run.lock():  # as `train --iterations 4` leaves it that is stopped in iteration 3
        run.record(3, shard.stage, shard.artifact_id, kind=shard.kind, reused=False, seconds=0.0)
    (small,) = invoke("runs", "list", "--store", store, "--json").json
    assert small["state"] == "stopped"
    iterations = [small[f"iterations_{which}"] for which in ("done", "begun", "configured")]
    assert iterations == [2, 3, 2]
    assert "Iterations: 2 of 3 or more\n" in invoke("runs", "show", "small", "--store", store).output
    shown = invoke("status", "small", "--store", store).output
    assert shown.startswith("Run small: erl, 2 of 3 or more iterations done\n")


def test_a_run_at_work_says_who_works_on_it_and_is_not_removed(store: Path) -> None:
    with RunStore(str(store)).open("small").lock():
        (small,) = invoke("runs", "list", "--store", store, "--json").json
        assert small["state"] == "at work"
        assert small["worked_on_by"].startswith("process ")
        refused = invoke("runs", "remove", "small", "--store", store)
    assert refused.status == 2
    assert refused.errors.startswith("error: run small is being worked on by process ")
    assert RunStore(str(store)).list() == ["small"]


def test_show_names_checkpoints_and_removal_says_what_is_freed(store: Path) -> None:
    shown = invoke("runs", "show", "small", "--store", store)
    assert shown.output.startswith(f"Run small in {store}: finished, erl\nIterations: 2 of 2\n")
    found = invoke("runs", "show", "small", "--store", store, "--json").json
    assert [each["stage"] for each in found["checkpoints"]].count("fine_tune") == 2
    removed = invoke("runs", "remove", "small", "--store", store, "--json").json
    assert removed["freed_by_gc"] == found["own_bytes"]
    assert invoke("runs", "list", "--store", store, "--json").json == []
    freed = invoke("gc", "--delete", "--min-age", "0", "--store", store, "--json").json
    assert {each["run"] for each in freed["unreached"]} == {"small"}
    assert not list(store.glob("artifacts/*/*/manifest.json"))


def test_the_command_that_removal_names_frees_what_is_young(store: Path) -> None:
    shown = invoke("runs", "remove", "small", "--store", store).output
    assert f"Free the first: erl-pipeline gc --delete --min-age 0 --store {store}\n" in shown
    assert "(without --min-age 0, what is younger than 1 h stays)\n" in shown
    kept = invoke("gc", "--delete", "--store", store).output
    assert "that no run reaches; --min-age 0 removes them too.\n" in kept


def test_a_run_whose_method_is_not_installed_is_listed_all_the_same(store: Path) -> None:
    path = store / "runs" / "small" / "run.json"
    config = json.loads(path.read_text())["config"]
    config["method"]["type"] = "gone"
    path.write_bytes(record_bytes({"name": "small", "config": config}))
    (small,) = invoke("runs", "list", "--store", store, "--json").json
    assert (small["state"], small["method"], small["score"]["iteration"]) == ("unreadable", "gone", 2)
