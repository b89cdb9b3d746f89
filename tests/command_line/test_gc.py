from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage.runs.run import RunStore
from tests.command_line.invoke import FinishedRun, invoke


@pytest.fixture
def store(finished: FinishedRun, tmp_path: Path) -> Path:
    shutil.copytree(finished.store, tmp_path / "store")
    return tmp_path / "store"


def test_a_store_of_one_run_has_nothing_to_remove(store: Path) -> None:
    shown = invoke("gc", "--store", store, "--min-age", "0")
    assert shown.status == 0
    assert shown.output.startswith(f"Store {store}: 1 run reaches ")
    assert shown.output.endswith("There is nothing to remove.\n")


def test_by_default_it_only_shows_what_it_would_remove_and_how(store: Path) -> None:
    shutil.rmtree(store / "runs" / "small")
    before = sorted(store.rglob("*"))
    shown = invoke("gc", "--store", store, "--min-age", "0")
    assert "no run reaches update_policy" in " ".join(shown.output.split())
    assert f": erl-pipeline gc --store {store} --min-age 0 --delete\n" in shown.output
    assert [path for path in sorted(store.rglob("*")) if path.name != "collection.lock"] == [
        path for path in before if path.name != "collection.lock"
    ]
    young = invoke("gc", "--store", store)
    assert "Kept, since younger than 1 h: " in young.output
    removed = invoke("gc", "--store", store, "--min-age", "0", "--delete", "--json").json
    assert removed["deleted"] is True
    assert {item["stage"] for item in removed["unreached"]} >= {"bootstrap", "rollout_shard", "evaluate"}
    assert list((store / "artifacts").glob("*/*")) == []


def test_after_retention_the_run_is_finished_whole_and_can_go_on(finished: FinishedRun, store: Path) -> None:
    rules = ["--retain-checkpoints", "1", "--retain-optimizer", "1", "--retain-trajectories", "1"]
    planned = invoke("gc", "--store", store, *rules, "--json").json
    assert {(item["iteration"], item["stage"]) for item in planned["pruned"]} == {
        (1, "update_policy"),
        (1, "fine_tune"),
        (1, "rollout_shard"),
    }
    before = sum(path.stat().st_size for path in (store / "artifacts").rglob("*") if path.is_file())
    invoke("gc", "--store", store, *rules, "--delete")
    after = sum(path.stat().st_size for path in (store / "artifacts").rglob("*") if path.is_file())
    assert before - after > 0.9 * planned["bytes"] > 0.3 * before

    verified = invoke("lineage", "verify", "small", "--store", store)
    assert verified.status == 0
    assert "all is whole" in verified.output
    assert "Pruned by retention: " in verified.output
    words = ["train", finished.config, "--store", store, "--no-prefect"]
    assert invoke(*words).errors == "Run small is finished: it has 2 iterations, all committed.\n"
    assert invoke(*words, "--iterations", "3").status == 0


def test_a_resumption_that_needs_a_pruned_file_makes_it_again(finished: FinishedRun, store: Path) -> None:
    invoke("gc", "--store", store, "--retain-optimizer", "1", "--delete")
    # The last stage of the first iteration is deleted; it reads an optimizer state that was pruned.
    ledger = (store / "runs" / "small" / "ledger.jsonl").read_text().splitlines()
    (lost,) = (
        line.split('"artifact_id":"')[1][:32]
        for line in ledger
        if '"iteration":1,"stage":"fine_tune"' in line
    )
    shutil.rmtree(store / "artifacts" / "fine_tune" / lost)
    told = invoke("train", finished.config, "--store", store, "--no-prefect")
    assert told.status == 0, told.errors
    said = " ".join(told.errors.split())
    assert f"fine_tune of iteration 1 ({lost}) is gone from the store, or damaged. It is made again." in said
    assert "(update_policy, iteration 1) was pruned on" in said
    assert "by the rule --retain-optimizer 1" in said
    assert (store / "artifacts" / "fine_tune" / lost / "manifest.json").exists()
    assert invoke("lineage", "verify", "small", "--store", store).status == 0


def test_for_a_run_that_cannot_be_continued_the_rules_alone_decide(store: Path) -> None:
    run = RunStore(str(store)).open("small")
    with run.lock():
        run.keep_settings({**run.config, "environment": {"type": "gone"}})
    told = invoke("gc", "--store", store, "--retain-trajectories", "1", "--json")
    assert {item["iteration"] for item in told.json["pruned"]} == {1}
    assert "Run small cannot be continued, so the rules alone decide: " in told.errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--retain-checkpoints", "0"], "is not a retention rule"),
        (["--run", "small"], "give one, such as --retain-checkpoints 3"),
        (["--run", "none", "--retain-checkpoints", "1"], "no run none"),
        (["--min-age", "inf"], "less than or equal to 876000"),
        (["--min-age", "99999999"], "less than or equal to 876000"),
        (["--min-age", "nan"], "less than or equal to 876000"),
    ],
)
def test_mistakes_are_told(store: Path, words: list[str], said: str) -> None:
    told = invoke("gc", "--store", store, *words)
    assert told.status == 2
    assert said in told.errors


def test_nothing_is_pruned_where_collection_would_refuse(store: Path) -> None:
    manifest = next((store / "artifacts" / "evaluate").glob("*/manifest.json"))
    manifest.write_text(manifest.read_text().replace('"evaluate"', '"evaluated"', 1))
    before = [path for path in sorted((store / "artifacts").rglob("*")) if path.is_file()]
    refused = invoke("gc", "--store", store, "--retain-optimizer", "1", "--delete")
    assert refused.status == 2
    assert "it is not known what is garbage" in " ".join(refused.errors.split())
    assert [path for path in sorted((store / "artifacts").rglob("*")) if path.is_file()] == before


@pytest.mark.parametrize("words", [["gc", "--delete"], ["runs", "list"]])
def test_an_empty_store_option_is_not_the_current_folder(words: list[str]) -> None:
    told = invoke(*words, "--store", "")
    assert told.status == 2
    assert told.errors == "error: --store names no store; for the current folder give --store .\n"
