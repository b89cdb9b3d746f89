"""The commands that inspect a run: status, memory, lineage, report, evaluate."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import polars as pl
import pytest

from erl_pipeline.stages.columns import ENTRIES
from storage.runs.run import RunStore
from tests.command_line.invoke import FinishedRun, invoke


def test_status_tells_how_far_the_run_is(finished: FinishedRun) -> None:
    result = invoke("status", "small", "--store", finished.store)
    assert result.output.startswith("Run small: erl, 2 of 2 iterations done\n")
    shown = invoke("status", "small", "--store", finished.store, "--json").json
    assert (shown["iterations_done"], shown["method"]) == (2, "erl")
    stages = [artifact["stage"] for artifact in shown["artifacts"] if artifact["iteration"] == 1]
    assert stages.count("rollout_shard") == 2
    assert set(stages) == {
        "rollout_shard",
        "generate_rollouts",
        "index_memory",
        "update_policy",
        "build_distillation",
        "fine_tune",
        "evaluate",
    }


def test_status_says_what_was_made_before_an_edit(finished: FinishedRun, tmp_path: Path) -> None:
    """The first update is another one now, and of the rest of the run nothing was made again."""
    store = Path(shutil.copytree(finished.store, tmp_path / "store"))
    run = RunStore(str(store)).open("small")
    (update,) = [each for each in run.stages() if (each.iteration, each.stage) == (1, "update_policy")]
    run.record(1, update.stage, update.artifact_id[::-1], kind=update.kind, reused=False, seconds=0.0)
    said = invoke("status", "small", "--store", store).output
    assert "0 of 2 iterations done" in said
    assert re.search(r"^\d+ artifacts of before an edit or an upgrade not counted: ", said, re.MULTILINE)
    first = next(each for each in run.stages() if each.stage == "bootstrap")
    promote = ["promote", "small", "--without-gate", "--why", "none", "--store", store, "--json"]
    assert invoke(*promote, "--checkpoint", "latest").json["checkpoint_id"] == first.artifact_id
    refused = invoke(*promote, "--checkpoint", "iteration:2")
    assert refused.errors.startswith("error: iteration:2: run small has no such checkpoint")


def test_memory_search_finds_what_the_run_remembers(finished: FinishedRun) -> None:
    rows = invoke("status", "small", "--store", finished.store, "--json").json["rows"]
    found = invoke(
        "memory", "search", "small", "a b c", "--store", finished.store, "--json", "--top-k", "2"
    ).json
    assert found["entries"] == rows[2][ENTRIES.name]
    assert 1 <= len(found["found"]) <= min(2, found["entries"])
    scores = [hit["score"] for hit in found["found"]]
    assert scores == sorted(scores, reverse=True)


def test_memory_as_it_was_then(finished: FinishedRun) -> None:
    rows = invoke("status", "small", "--store", finished.store, "--json").json["rows"]
    for iteration, entries in ((0, 0), (1, rows[1][ENTRIES.name]), (2, rows[2][ENTRIES.name])):
        found = invoke(
            "memory",
            "search",
            "small",
            "x",
            "--store",
            finished.store,
            "--json",
            "--iteration",
            str(iteration),
        )
        assert found.json["entries"] == entries


@pytest.mark.parametrize("words", [["search", "small", "x"], ["list", "small"], ["stats", "small"]])
def test_memory_of_an_iteration_that_is_not_there_is_refused(finished: FinishedRun, words: list[str]) -> None:
    result = invoke("memory", *words, "--iteration", "9", "--store", finished.store)
    assert result.status == 2
    assert result.errors == "error: run small has no iteration 9; its last one is 2.\n"


def test_an_empty_query_is_refused(finished: FinishedRun) -> None:
    result = invoke("memory", "search", "small", " ", "--store", finished.store)
    assert result.status == 2
    assert result.errors == "error: TEXT is empty: say what to look for; `memory list` shows all entries.\n"


def test_lineage_of_a_checkpoint_reaches_its_rollouts(finished: FinishedRun) -> None:
    entries = RunStore(str(finished.store)).open("small").stages()
    updated = next(e for e in entries if (e.iteration, e.stage) == (1, "update_policy"))
    node = invoke(
        "lineage", "show", "small", updated.artifact_id[:16], "--store", finished.store, "--json"
    ).json
    assert node["id"] == updated.artifact_id
    nearest = [thing for thing in node["things"] if thing["depth"] == 1]
    assert {thing["facts"]["stage"] for thing in nearest} == {"bootstrap", "generate_rollouts"}
    latest = [each for each in entries if each.stage == "fine_tune"]
    for selector, found in (("iteration:1", latest[0]), ("latest", latest[1])):
        shown = invoke("lineage", "show", "small", selector, "--store", finished.store, "--json").json
        assert shown["id"] == found.artifact_id
    text = invoke("lineage", "show", "small", updated.artifact_id, "--store", finished.store).output
    assert "its input rollouts" in text


def test_lineage_of_a_trajectory_shows_what_was_said_and_where_the_whole_is(finished: FinishedRun) -> None:
    learned = ["lineage", "trained-on", "latest", "--run", "small", "--store", finished.store, "--json"]
    row = invoke(*learned).json["rows"][0]
    words = ["lineage", "show", "small", row["trajectory_id"], "--store", finished.store]
    node = invoke(*words, "--depth", "0", "--json").json
    assert node["things"] == []
    text = invoke(*words, "--depth", "0").output
    for message in node["facts"]["messages"]:
        assert f"[{message['role']}]: {message['content'][:20]}" in text
    assert f"episodes show {node['facts']['episode_id']} --prompts --store {finished.store}\n" in text
    longer = invoke(*words, "--depth", "1").output.splitlines()
    assert len(text.splitlines()) < len(longer) < 60


def test_verify_finds_a_flipped_byte_and_says_where(finished: FinishedRun, tmp_path: Path) -> None:
    whole = invoke("lineage", "verify", "small", "--store", finished.store)
    assert whole.status == 0
    assert whole.output.startswith("Run small: all is whole. Checked ")
    store = tmp_path / "store"
    shutil.copytree(finished.store, store)
    victim = next(store.glob("artifacts/rollout_shard/*/trajectories.parquet"))
    content = bytearray(victim.read_bytes())
    content[100] ^= 1
    victim.write_bytes(content)
    found = invoke("lineage", "verify", "small", "--store", store, "--json")
    assert found.status == 1
    assert len(found.json["problems"]) == 1
    assert str(victim.relative_to(store)) in found.json["problems"][0]


def test_report_goes_where_it_is_told(finished: FinishedRun, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = invoke("report", "small", "--store", finished.store, "--output", page)
    assert result.output == f"Report: {page}\n"
    assert "small" in page.read_text(encoding="utf-8")


@pytest.fixture
def copied(finished: FinishedRun, tmp_path: Path) -> Path:
    shutil.copytree(finished.store, tmp_path / "store")
    return tmp_path / "store"


def test_evaluate_gives_intervals_and_leaves_the_run_as_it_was(copied: Path) -> None:
    rows = invoke("status", "small", "--store", copied, "--json").json["rows"]
    words = ["evaluate", "small", "--tasks", "generated", "--count", "5", "--samples", "2"]
    found = invoke(*words, "--store", copied, "--json").json
    metrics = found["metrics"]
    assert (found["tasks"], found["iteration"]) == (5, 2)
    assert metrics["greedy_success"] * 5 == pytest.approx(round(metrics["greedy_success"] * 5))
    assert metrics["greedy_success_low"] <= metrics["greedy_success"] <= metrics["greedy_success_high"]
    assert metrics["sampled_success_low"] <= metrics["sampled_success"] <= metrics["sampled_success_high"]
    assert invoke("status", "small", "--store", copied, "--json").json["rows"] == rows


def test_evaluate_on_a_task_file_with_a_checkpoint_of_an_iteration(copied: Path, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"task_id": "t1", "board": ["FFF", "FSF", "FFG"], "max_steps": 2}\n')
    words = ["evaluate", "small", "--tasks", tasks, "--checkpoint", "iteration:0", "--samples", "0"]
    found = invoke(*words, "--store", copied, "--json").json
    assert (found["tasks"], found["iteration"]) == (1, 0)
    [file] = copied.glob(f"artifacts/evaluate*/{found['artifact_id']}/*.parquet")
    [solved] = pl.read_parquet(file)["success"]
    assert found["metrics"]["greedy_success"] == float(solved)


@pytest.mark.parametrize("checkpoint", ["iteration:9", "iteration:x", "ffffffff"])
def test_an_unknown_checkpoint_is_refused(finished: FinishedRun, checkpoint: str) -> None:
    words = ["evaluate", "small", "--tasks", "generated", "--checkpoint", checkpoint]
    result = invoke(*words, "--store", finished.store)
    assert result.status == 2
    assert checkpoint in result.errors


def test_a_task_file_with_a_bad_board_is_named_with_its_line(finished: FinishedRun, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"task_id": "t1", "board": ["SFX", "FFF", "FFG"], "max_steps": 2}\n')
    result = invoke("evaluate", "small", "--tasks", tasks, "--store", finished.store)
    assert result.status == 2
    assert f"task file {tasks}, line 1" in result.errors
