from __future__ import annotations

import shutil
import sys
import time
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

import erl_pipeline.runs.state
from command_line.train import run as train_run
from erl_pipeline.runs.config import run_config
from storage.errors import StoreError
from storage.runs.run import RunStore
from tests.command_line.invoke import SMALL, FinishedRun, invoke
from tests.erl_pipeline.runs.small_runs import small


def test_training_ends_with_the_table_the_report_and_what_to_try(finished: FinishedRun) -> None:
    output = finished.training.output
    headings = [
        "iter",
        "1st",
        "2nd",
        "gain",
        "retried",
        "memory",
        "RL",
        "loss",
        "SFT",
        "held-out",
        "tokens",
        "tokens/s",
        "seconds",
    ]
    assert output.splitlines()[1].split() == headings
    report = finished.store / "runs" / "small" / "report.html"
    assert f"Report: {report}" in output
    assert report.read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html")
    assert f"  erl-pipeline status small --store {finished.store}\n" in output
    going_on = f"train {finished.config} --store {finished.store} --no-prefect --iterations 12"
    assert output.endswith(f"  erl-pipeline {going_on}\n")


def test_a_finished_run_keeps_the_rules_of_retention_that_are_given_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunStore(str(tmp_path)).create(
        "small", small(retention={"checkpoints": "1"}).model_dump(mode="json")
    )
    pruned_by = []
    monkeypatch.setattr(train_run, "find_finished_run", lambda *_: run)
    monkeypatch.setattr(train_run, "retain_run", lambda _, run: pruned_by.append(run_config(run).retention))
    monkeypatch.setattr(train_run, "_conclude", lambda *_: None)
    train_run.train_until(small(), str(tmp_path), 2, check=False, json=False)
    assert [rules.checkpoints for rules in pruned_by] == [None]
    assert run_config(RunStore(str(tmp_path)).open("small")) == small()


def test_each_stage_shows_one_line_when_there_is_no_terminal(finished: FinishedRun) -> None:
    lines = [line for line in finished.training.errors.splitlines() if line.startswith("iteration 1/2")]
    assert [line.split()[2] for line in lines] == [
        "generate_rollouts",
        "index_memory",
        "update_policy",
        "build_distillation",
        "fine_tune",
        "evaluate",
    ]


def test_a_finished_run_is_not_trained_again(finished: FinishedRun) -> None:
    begin = time.perf_counter()
    again = invoke("train", finished.config, "--store", finished.store, "--no-prefect", "--json")
    assert time.perf_counter() - begin < 60.0
    assert again.errors == "Run small is finished: it has 2 iterations, all committed.\n"
    assert again.json["worked"] is False
    assert [row["iteration"] for row in again.json["rows"]] == [0, 1, 2]


def test_a_finished_run_is_shown_from_a_store_that_one_may_only_read(
    finished: FinishedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise StoreError("read-only file system")

    monkeypatch.setattr(train_run, "keep_settings", refused)
    shown = invoke("train", finished.config, "--store", finished.store, "--no-prefect", "--json")
    assert (shown.status, len(shown.json["rows"])) == (0, 3)
    assert "The settings that may change are not stored: read-only file system" in shown.errors


def test_of_a_long_run_the_newest_iterations_are_shown_and_the_report_is_left_to_its_command(
    finished: FinishedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(finished.store, store)
    (store / "runs" / "small" / "report.html").unlink()
    monkeypatch.setattr(erl_pipeline.runs.state, "REPORTED_ITERATIONS", 1)
    monkeypatch.setattr("command_line.train.run.MOST_ROWS", 1)
    words = ("train", finished.config, "--store", store)
    output = invoke(*words).output
    assert [line.split()[:1] for line in output.splitlines()[3:6]] == [["2"], [], ["The"]]
    assert "The newest 1 iteration; `status` shows all." in output
    assert "Report:" not in output
    assert f"  erl-pipeline report small --store {store}\n" in output
    result = invoke(*words, "--json").json
    assert (result["report"], [row["iteration"] for row in result["rows"]]) == (None, [2])


def test_other_settings_for_a_run_that_exists_are_refused(finished: FinishedRun) -> None:
    result = invoke("train", finished.config, "--store", finished.store, "--set", "rollouts.group_size=6")
    assert result.status == 2
    assert "run small exists with other settings: rollouts.group_size: 4 -> 6" in result.errors


def test_a_run_goes_on_under_its_own_name_beyond_its_end(finished: FinishedRun, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(finished.store, store)
    result = invoke("train", finished.config, "--store", store, "--iterations", "3", "--no-prefect", "--json")
    assert result.status == 0
    assert "artifacts found committed and looked at" in result.errors
    assert [row["iteration"] for row in result.json["rows"]] == [0, 1, 2, 3]
    before = {entry.artifact_id for entry in RunStore(str(finished.store)).open("small").stages()}
    after = {entry.artifact_id for entry in RunStore(str(store)).open("small").stages()}
    assert before < after


def test_a_name_makes_another_run_in_the_store(finished: FinishedRun, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(finished.store, store)
    result = invoke("train", finished.config, "--store", store, "--name", "007", "--no-prefect", "--json")
    assert result.json["run"] == "007"
    assert RunStore(str(store)).list() == ["007", "small"]


def test_a_run_that_is_being_worked_on_is_refused(finished: FinishedRun) -> None:
    with RunStore(str(finished.store)).open("small").lock():
        result = invoke(
            "train", finished.config, "--store", finished.store, "--iterations", "3", "--no-prefect"
        )
    assert result.status == 2
    assert "run small is being worked on by process" in result.errors


def test_a_damaged_artifact_is_named_and_made_again(finished: FinishedRun, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(finished.store, store)
    old, new = (
        store / "artifacts/build_distillation" / entry.artifact_id / "sft.parquet"
        for entry in RunStore(str(store)).open("small").stages()
        if entry.stage == "build_distillation"
    )
    whole = {victim: victim.read_bytes() for victim in (old, new)}
    for victim in whole:
        victim.write_bytes(whole[victim][:-1])
    words = ("train", finished.config, "--store", store, "--no-prefect")
    result = invoke(*words)
    assert result.status == 0
    assert str(new) in result.errors
    assert new.read_bytes() == whole[new]

    # Nothing of earlier iterations is read; with `--check` all of them are.
    again = invoke(*words)
    assert "Run small is finished" in again.errors
    assert str(old) not in again.errors
    checked = invoke(*words, "--check")
    assert checked.status == 0
    assert str(old) in checked.errors
    assert old.read_bytes() == whole[old]


@pytest.fixture
def edited_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make FrozenLake look edited: its sources are found in a copy with other feedback."""
    package = sys.modules["erl_pipeline.environments.frozen_lake"]
    assert package.__file__ is not None
    shutil.copytree(Path(package.__file__).parent, tmp_path / "edited")
    module = tmp_path / "edited" / "__init__.py"
    rules = module.parent / "game.py"
    source = rules.read_text(encoding="utf-8")
    assert "without success" in source
    rules.write_text(source.replace("without success", "badly"), encoding="utf-8")
    places = [str(module.parent)]
    spec = spec_from_file_location(package.__name__, module, submodule_search_locations=places)
    monkeypatch.setattr(package, "__spec__", spec)


@pytest.mark.usefixtures("edited_environment")
def test_after_an_edit_of_the_environment_it_is_said_why_everything_is_computed_again(
    finished: FinishedRun, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(finished.store, store)
    result = invoke("train", finished.config, "--store", store, "--no-prefect", "--iterations", "2")
    assert result.status == 0, result.errors
    assert (
        "The code of erl_pipeline.environments.frozen_lake has changed: "
        "everything through iteration 2 is computed again\n"
    ) in result.errors
    before, after = (RunStore(str(each)).open("small").stages() for each in (finished.store, store))
    assert not {entry.artifact_id for entry in before} & {entry.artifact_id for entry in after[len(before) :]}


def test_a_bad_configuration_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL + "bad: 1\n")
    result = invoke("train", tmp_path / "small.yaml", "--store", tmp_path / "store")
    assert result.status == 2
    assert "line 8: bad: unknown key" in result.errors
    assert not (tmp_path / "store").exists()


def test_a_run_that_is_refused_before_it_begins_is_in_no_list(tmp_path: Path) -> None:
    """First its questions are not there, then its model. A run that was there before stays."""
    questions = tmp_path / "questions.jsonl"
    config = tmp_path / "ask.yaml"
    config.write_text(
        f"name: ask\niterations: 1\nenvironment: {{type: questions, training_file: {questions}}}\n"
        "policy: {type: pretrained, model: none/of/these}\nmethod: rlvr\n"
    )
    words = ("train", config, "--store", tmp_path / "store", "--no-prefect")
    runs = RunStore(str(tmp_path / "store"))
    assert "cannot be read" in invoke(*words).errors
    assert runs.list() == []
    questions.write_text("")
    assert "neither a folder here nor a model on the Hugging Face hub" in invoke(*words).errors
    assert runs.list() == []
    runs.create("ask", {"method": {"type": "rlvr"}})
    assert invoke(*words).status == 2
    assert runs.list() == ["ask"]
