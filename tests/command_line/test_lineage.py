"""`erl-pipeline lineage`, on a small history whose answers are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line.lineage.reach import policies_reached, scores_reached
from storage.lineage.reach import downstream
from tests.command_line.invoke import Result, invoke
from tests.histories import History, write_history


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return write_history(str(tmp_path_factory.mktemp("history") / "store"))


def lineage(history: History, *words: object) -> Result:
    return invoke("lineage", *words, "--store", history.store.uri)


def test_upstream_lists_what_a_row_came_from_and_which_runs_share_it(history: History) -> None:
    result = lineage(history, "upstream", "base", "s-second")
    assert result.output.startswith("SFT row s-second came from 4 artifacts, 3 trajectories.\n")
    found = lineage(history, "upstream", "base", "s-second", "--json").json
    runs = {thing["id"]: thing["runs"] for thing in found["things"] if thing["kind"] == "artifact"}
    assert runs[history.ids["shard"]] == ["base", "branch"]
    assert runs[history.ids["dataset"]] == ["base"]


def test_downstream_tells_policies_and_scores(history: History) -> None:
    result = lineage(history, "downstream", "base", "m-1")
    assert result.output.startswith("Memory entry m-1 reached 3 artifacts, 2 trajectories.\n")
    assert "1 policy trained on it or on what came of it, 1 descends from that.\n" in result.output
    assert "0.500" in result.output
    found = lineage(history, "downstream", "base", "m-1", "--json").json
    assert [policy["how"] for policy in found["policies"]] == ["directly", "as a descendant"]
    assert [score["greedy_success"] for score in found["evaluations"]] == [0.5]


def test_depth_and_limit_shorten_the_answer_and_say_so(history: History) -> None:
    near = lineage(history, "downstream", "base", "m-1", "--depth", "1", "--json").json
    assert [thing["id"] for thing in near["things"]] == ["reflection-2"]
    short = lineage(history, "downstream", "base", "m-1", "--limit", "2").output
    assert "3 more, further away: --limit 5, or --json for all.\n" in short
    assert "tuned-2"[:5] not in short


def test_questions_over_the_store(history: History) -> None:
    used = lineage(history, "rows-using-memory", "m-1")
    assert used.output.startswith("2 rows in 1 artifact used memory entry m-1.\n")
    rows = lineage(history, "rows-using-memory", "m-1", "--json").json["rows"]
    assert [row["id"] for row in rows] == ["reflection-2", "second-2"]
    trained = lineage(history, "policies-trained-on", "t1")
    assert trained.output.startswith("Task t1: 4 policies trained on it directly, 1 as a descendant.\n")
    in_branch = lineage(history, "policies-trained-on", "t1", "--run", "branch", "--json").json
    assert [policy["policy"] for policy in in_branch["policies"]] == [history.ids["update-branch"]]
    manifest = history.store.find(history.ids["scores"])
    assert manifest is not None
    made = lineage(history, "made-by", manifest.code_version, "--json").json["artifacts"]
    assert len(made) == len(history.ids)


def test_export_writes_a_file_of_events(history: History, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    result = lineage(history, "export", "branch", "--openlineage", file)
    assert result.output == f"Run branch: 8 OpenLineage events to {file}.\n"
    assert [json.loads(line)["eventType"] for line in file.read_text().splitlines()].count("START") == 4


def test_graph_is_written_for_programs_that_draw(history: History, tmp_path: Path) -> None:
    for name in ("run.mmd", "run.json"):
        result = lineage(history, "graph", "base", "--output", tmp_path / name)
        assert result.output == f"Graph: {tmp_path / name}  iterations 1 to 2 of 2\n"
    assert json.loads((tmp_path / "run.json").read_text())["run"] == "base"
    found = lineage(
        history, "graph", "base", "--output", tmp_path / "m.mmd", "--iteration", "2", "--of", "m-1", "--json"
    ).json
    assert (found["artifacts"], found["iterations"]) == (5, [2])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["upstream", "base", "nothing"], "no artifact, trajectory, SFT row or memory entry has an id"),
        (["downstream", "bass", "m-1"], "Did you mean base?"),
        (["rows-using-memory", "first"], "no memory entry has an id 'first'"),
        (["policies-trained-on", "t9"], "no row is of task 't9'"),
        (["made-by", "no-commit"], "nothing was made by code version 'no-commit'"),
        (["export", "base", "--openlineage", "kafka://x"], "give an http:// or https:// URL"),
        (["export", "base", "--openlineage", "localhost:5000"], "such as http://localhost:5000"),
        (["graph", "base", "--output", "x.png"], "name a file that ends in .mmd, .json"),
        (["graph", "base", "--output", "x.mmd", "--iteration", "2..1"], "the first is after the last"),
        (["graph", "base", "--output", "x.mmd", "--iteration", "one"], "give one, such as 7"),
        (["graph", "base", "--output", "x.mmd", "--iteration", "7"], "the last one to show is 2"),
    ],
)
def test_mistakes_are_named_with_status_2(history: History, words: list[str], said: str) -> None:
    result = lineage(history, *words)
    assert result.status == 2
    assert said in result.errors
    assert "Traceback" not in result.errors


def test_policies_and_scores_are_told_apart_by_whether_the_training_itself_read_it(history: History) -> None:
    reach = downstream(history.store, history.base, "m-1")
    assert [(policy["policy"], policy["how"], policy["iteration"]) for policy in policies_reached(reach)] == [
        (history.ids["update-2"], "directly", 2),
        (history.ids["tuned-2"], "as a descendant", 2),
    ]
    (score,) = scores_reached(reach)
    assert (score["artifact_id"], score["policy"]) == (history.ids["scores-2"], history.ids["tuned-2"])
    assert (score["how"], score["greedy_success"], score["run"]) == ("as a descendant", 0.5, "base")


def test_the_score_of_a_policy_that_trained_on_it_directly(history: History) -> None:
    reach = downstream(history.store, history.base, "s-second")
    scores = [(score["policy"], score["how"], score["greedy_success"]) for score in scores_reached(reach)]
    assert scores == [
        (history.ids["tuned"], "directly", 0.25),
        (history.ids["tuned-2"], "as a descendant", 0.5),
    ]
