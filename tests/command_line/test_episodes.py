"""`erl-pipeline episodes`, on the small run and on a store written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from tests.command_line.invoke import FinishedRun, Result, invoke
from tests.training_stores import TrainingStore, trajectories, write_replay, write_training_store


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TrainingStore:
    return write_training_store(str(tmp_path_factory.mktemp("made") / "store"))


def episodes(made: TrainingStore, *words: str) -> Result:
    return invoke("episodes", *words, "--store", made.store.uri)


def listed(made: TrainingStore, *words: str) -> list[str]:
    return [row["episode_id"] for row in episodes(made, "list", "run", "--json", *words).json["shown"]]


def test_episodes_are_listed_the_newest_first(made: TrainingStore) -> None:
    found = episodes(made, "list", "run", "--json").json
    assert found["episodes"] == 2
    assert [row["episode_id"] for row in found["shown"]] == ["episode-2", "episode"]
    assert found["shown"][1]["roles"] == ["first_attempt", "reflection", "second_attempt"]
    assert (found["shown"][1]["rewards"], found["shown"][1]["outcome"]) == ([0.0, 1.0, 1.0], "helped")
    printed = episodes(made, "list", "run", "--limit", "1").output
    assert printed.startswith("Run run: 2 episodes, the newest first\n")
    assert "1 more: --limit 2\n" in printed


def test_filters_name_iteration_task_outcome_reward_and_text(made: TrainingStore) -> None:
    assert listed(made, "--iteration", "1") == ["episode"]
    assert listed(made, "--iteration", "1..2") == ["episode-2", "episode"]
    assert listed(made, "--task", "t2") == ["episode-2"]
    assert listed(made, "--task-type", "lake-9x9") == []
    assert listed(made, "--outcome", "helped") == listed(made, "--min-reward", "0.5") == ["episode"]
    assert (listed(made, "--outcome", "solved"), listed(made, "--outcome", "failed")) == ([], ["episode-2"])
    assert (listed(made, "--text", "go\nright"), listed(made, "--text", "right?")) == (["episode"], [])
    assert listed(made, "--held-out") == []


def test_an_iteration_beyond_the_end_is_told_of(made: TrainingStore) -> None:
    found = episodes(made, "list", "run", "--iteration", "99")
    assert found.status == 0
    assert found.output.startswith("Run run: 0 episodes of iteration 99: run run ends with iteration 2\n")
    samples = invoke("lineage", "samples", "run", "--iteration", "99", "--store", made.store.uri)
    assert "run run has no samples of iteration 99: run run ends with iteration 2." in samples.errors


def test_an_offline_run_lists_what_it_trained_on(made: TrainingStore) -> None:
    found = episodes(made, "list", "offline", "--json").json
    assert [row["episode_id"] for row in found["shown"]] == ["episode-2"]


def test_an_episode_is_shown_with_what_was_trained_and_why_the_rest_was_not(made: TrainingStore) -> None:
    result = episodes(made, "show", "episode")
    assert result.status == 0
    lines = [line.strip() for line in result.output.splitlines()]
    assert lines[0] == "Episode episode"
    update, tuned = made.ids["update"][:12], made.ids["tuned"][:12]
    assert f"not trained: zero_advantage, advantage 0; update {update} of run run" in lines
    assert f"trained: advantage 0.5, 3 tokens, loss -0.25; update {update} of run run" in lines
    assert f"fine-tuned as distilled: 3 tokens; tuned {tuned} of run run" in lines
    order = [lines.index(line) for line in ("policy: left", "text: go right", "policy: right")]
    assert order == sorted(order)
    assert "prompt: right?" not in lines
    assert "prompt: right?" in episodes(made, "show", "episode", "--prompts").output


def test_an_episode_is_given_whole_to_programs(made: TrainingStore) -> None:
    found = episodes(made, "show", "episode", "--json").json
    assert found["artifact_id"] == made.ids["shard"]
    assert [row["role"] for row in found["trajectories"]] == ["first_attempt", "reflection", "second_attempt"]
    last = found["trajectories"][2]["training"]
    assert [(row["stage"], row["kind"]) for row in last] == [
        ("update", "reinforcement"),
        ("tuned", "supervised"),
    ]
    # The other episode was trained on in two runs.
    other = episodes(made, "show", "episode-2", "--json").json["trajectories"][0]["training"]
    assert sorted(row["run"] for row in other) == ["offline", "run"]
    alone = episodes(made, "show", "episode-2", "--run", "offline", "--json").json["trajectories"][0]
    assert [row["run"] for row in alone["training"]] == ["offline"]


def test_a_replayed_trajectory_is_no_episode_and_its_training_is_shown_with_the_trajectory(
    tmp_path: Path,
) -> None:
    made = write_training_store(str(tmp_path / "store"))
    write_replay(made)
    assert len(episodes(made, "list", "run", "--json").json["shown"]) == 3
    lines = [line.strip() for line in episodes(made, "show", "episode").output.splitlines()]
    update = made.ids["update-3"][:12]
    assert f"trained as replay: advantage 0.25, 3 tokens; update {update} of run run" in lines
    found = episodes(made, "show", "episode", "--json").json["trajectories"]
    assert [len(row["training"]) for row in found] == [1, 1, 3]


def test_any_episode_of_a_trained_run_can_be_read(finished: FinishedRun) -> None:
    words = ("--store", finished.store)
    found = invoke("episodes", "list", "small", "--limit", "1000", "--json", *words).json
    assert found["episodes"] == len(found["shown"]) == 32
    longest = max(found["shown"], key=lambda row: len(row["roles"]))
    shown = invoke("episodes", "show", longest["episode_id"][:20], "--run", "small", *words)
    assert shown.status == 0
    for role in longest["roles"]:
        assert role.replace("_", " ").capitalize() in shown.output
    assert shown.output.count("trained: ") >= len(longest["roles"])
    # The board is in the symbols that the line below it names; cells such as c4 are explained once.
    board = shown.output.split("\n  actions:")[0].splitlines()[2:]
    assert set("".join(board)) <= {" ", "#", "&", "$", "@"}
    assert shown.output.count("answers: such as down c4: the player moved down, to cell 4") == 1
    held_out = invoke("episodes", "list", "small", "--held-out", "--json", *words).json
    assert {row["roles"][0] for row in held_out["shown"]} == {"first_attempt"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list", "rum"], "Did you mean run?"),
        (["list", "run", "--iteration", "2..1"], "the first is after the last"),
        (["show", "nothing"], "no episode has an id 'nothing'"),
        (["show", "epi"], "2 episodes begin with 'epi'"),
        (["show", ""], "Give an id of episodes"),
    ],
)
def test_mistakes_are_named_with_status_2(made: TrainingStore, words: list[str], said: str) -> None:
    result = episodes(made, *words)
    assert result.status == 2
    assert said in result.errors


def test_names_of_tools_tasks_and_facts_cannot_steer_the_terminal(tmp_path: Path) -> None:
    code = "\x1b[2J\nx"
    call = {"id": "c", "type": "function", "function": {"name": code, "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "done", "tool_call_id": "c"},
    ]
    made = TrainingStore(ArtifactStore(str(tmp_path)), RunStore(str(tmp_path)))
    row = {
        "trajectory_id": f"first{code}",
        "task_id": code,
        "task_type": code,
        "finish_reason": code,
        "task_payload": json.dumps({code: "fact", "board": [code]}),
        "messages": json.dumps(messages),
    }
    made.commit("shard", "trajectories", write=trajectories(row))
    shown = episodes(made, "show", "episode").output
    assert "\x1b" not in shown
    assert "task ␛[2J␊x (␛[2J␊x)" in shown
    assert "  calls ␛[2J␊x: " in shown
