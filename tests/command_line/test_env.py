"""`env list`, `show`, `play` and `qualify`, on FrozenLake."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from erl_pipeline.config.loading import load_config
from erl_pipeline.plan.sources import read_sources
from erl_pipeline.runs.environment_checks import state_of_qualification, tasks_of_plan
from erl_pipeline.runs.run_plans import plan_run
from storage.artifacts.store import ArtifactStore
from tests.command_line.invoke import SMALL, FinishedRun, Result, invoke

PROSE = """\
name: prose
iterations: 1
environment:
  type: frozen_lake
  format: prose
  actions: named
  training_boards: 8
policy: {type: pretrained, model: somewhere}
evaluation: {tasks: 4}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture
def prose(tmp_path: Path) -> Path:
    path = tmp_path / "prose.yaml"
    path.write_text(PROSE)
    return path


def played(monkeypatch: pytest.MonkeyPatch, lines: str, *words: object) -> Result:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    return invoke("env", "play", *words)


def test_the_list_names_package_and_purpose() -> None:
    listed = invoke("env", "list", "--json").json
    lake = next(each for each in listed["environments"] if each["type"] == "frozen_lake")
    assert lake["distribution"] == "erl-pipeline"
    assert lake["about"].startswith("FrozenLake without slipping")
    assert lake["missing"] == []
    assert "frozen_lake" in invoke("env", "list").output


def test_a_type_is_shown_with_its_settings() -> None:
    shown = invoke("env", "show", "frozen_lake", "--json").json
    settings = {each["key"]: each for each in shown["settings"]}
    assert settings["max_steps"] == {
        "key": "max_steps",
        "type": "whole number",
        "default": 6,
        "required": False,
        "text": "Moves in one attempt. A task file's own `max_steps` wins for its tasks.",
    }
    assert settings["realms.training"]["default"] == 16
    assert settings["rows"]["type"] == "[whole number, whole number]"
    assert (shown["tiny"], shown["tools"], shown["test_tasks"]) == (True, None, None)
    text = invoke("env", "show", "frozen_lake").output
    assert 'action_mode: step | plan (default "step")' in text
    assert "tools:        depends on the settings: give a configuration" in text


def test_a_configuration_is_shown_with_its_tasks(config: Path) -> None:
    shown = invoke("env", "show", config, "--set", "environment.test_boards=4", "--json").json
    assert {name: shown["tasks"][name] for name in ("training", "held_out", "test")} == {
        "training": 32,
        "held_out": 8,
        "test": 4,
    }
    assert shown["tasks"]["first"]["task_id"] == "frozen_lake-held_out-0-00000"
    (message,) = shown["tasks"]["first"]["messages"]
    assert message["role"] == "user"
    assert message["content"].endswith("notes ? ? ? ?")
    assert shown["tools"] == []


def test_the_held_out_tasks_that_are_training_tasks_turned_around_are_counted(config: Path) -> None:
    words = ["--set", "environment.test_boards=4", "--set", "environment.training_boards=2000"]
    shown = invoke("env", "show", config, *words, "--json").json
    assert shown["tasks"]["twins"] == {"held_out": 0, "test": 0}
    text = invoke("env", "show", config, *words).output
    assert "Twins: 0 of 8 held-out and 0 of 4 test tasks are training tasks turned or mirrored" in text
    old = invoke("env", "show", config, *words, "--set", "environment.twins=any_split", "--json").json
    assert old["tasks"]["twins"]["held_out"] > 0


LEVELS = """\
name: levels
iterations: 1
environment: {type: sokoban, format: prose, solution_length: [1, 3], max_steps: 3, task_file: levels.txt}
policy: {type: pretrained, model: somewhere}
rollouts: {tasks_per_iteration: 1}
evaluation: {tasks: 2}
"""


def test_levels_that_need_too_many_moves_are_counted_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("levels.yaml").write_text(LEVELS)
    Path("levels.txt").write_text("; 0\n@$.\n\n; 1\n@$    .\n\n; 2\n@$     .\n")
    Path("somewhere").mkdir()
    shown = invoke("env", "show", "levels.yaml", "--json").json
    left_out = (
        "2 of 3 levels of task file levels.txt are left out: they need more than environment.max_steps: 3 "
        "moves (levels-1, levels-2)"
    )
    assert shown["tasks"]["training"] == 1
    assert shown["tasks"]["left_out"] == [left_out]
    assert f"Left out: {left_out}" in " ".join(invoke("env", "show", "levels.yaml").output.split())


def test_what_is_neither_is_told() -> None:
    result = invoke("env", "show", "no_such")
    assert result.status == 2
    assert (
        "no_such is neither a type of environment nor a configuration file; there are agent" in result.errors
    )


def test_a_person_who_plays_well_gets_what_a_policy_would_get(
    monkeypatch: pytest.MonkeyPatch, prose: Path
) -> None:
    from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
    from erl_pipeline.environments.frozen_lake.tasks import TASKS, gold_answer

    environment = load_config(prose).environment
    assert isinstance(environment, FrozenLakeConfig)
    task = TASKS.held_out_tasks(environment, 0, 4)[2]
    turns = gold_answer(environment, task)
    assert turns is not None
    result = played(monkeypatch, "".join(f"{turn}\n" for turn in turns), prose, "--task", task.task_id)
    assert result.status == 0, result.errors
    assert f"Task {task.task_id} (frozen_lake-4x4)" in result.output
    assert "[system]\nYou act in a world that is shown as a grid of symbols." in result.output
    assert "[feedback]\nThe attempt succeeded: the player reached the goal. Steps used:" in result.output
    assert f"Reward 1: success, after {len(turns)} turn" in result.output


def test_the_end_of_the_input_leaves_the_attempt(monkeypatch: pytest.MonkeyPatch, prose: Path) -> None:
    result = played(monkeypatch, 'who knows\n"""\nfirst I think\n[up]\n"""\n', prose, "--seed", "3")
    assert result.status == 0
    assert "Your answer held no valid action, so nothing was done." in result.output
    assert result.output.endswith("The attempt was abandoned after 2 turns; it has no feedback.\n")


def test_ctrl_c_leaves_it_too(monkeypatch: pytest.MonkeyPatch, prose: Path) -> None:
    def interrupted() -> str:
        raise KeyboardInterrupt

    stdin = io.StringIO()
    monkeypatch.setattr(stdin, "readline", interrupted)
    monkeypatch.setattr("sys.stdin", stdin)
    result = invoke("env", "play", prose)
    assert result.status == 130
    assert result.output.endswith("The attempt was abandoned; it has no feedback.\n")


def test_a_task_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, config: Path) -> None:
    assert (
        "--task t9: no training, held-out or test task has this id"
        in played(monkeypatch, "", config, "--task", "t9").errors
    )
    assert "it needs test_boards: 256" in played(monkeypatch, "", config, "--split", "test").errors


def test_frozen_lake_is_qualified_once_and_found_again(config: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    words = ["env", "qualify", config, "--store", store, "--tasks", "8", "--answers", "60"]
    first = invoke(*words)
    assert first.status == 0, first.errors
    assert "Environment frozen_lake is qualified." in first.output
    again = invoke(*words, "--json").json
    assert (again["reused"], again["qualified"]) == (True, True)
    assert [check["verdict"] for check in again["checks"]] == ["passed"] * 9
    # Without hostile answers nothing is trained, which takes seconds.
    quick = [*words[:-4], "--tasks", "2", "--answers", "0", "--json"]
    assert invoke(*quick, "--seed", "5").json["artifact_id"] != invoke(*quick).json["artifact_id"]

    artifacts = ArtifactStore(str(store))
    resolved = load_config(config)
    recipe = tasks_of_plan(plan_run(resolved, read_sources(resolved), iterations=1))
    assert recipe is not None
    qualified, sentence = state_of_qualification(artifacts, recipe)
    assert (qualified, sentence[:43]) == (True, "environment frozen_lake is qualified (artif")
    other = load_config(config, ["environment.max_steps=3"])
    recipe = tasks_of_plan(plan_run(other, read_sources(other), iterations=1))
    assert recipe is not None
    assert not state_of_qualification(artifacts, recipe)[0]

    assert invoke("gc", "--store", store, "--min-age", "0", "--delete").status == 0
    assert artifacts.find(again["artifact_id"]) is not None


def test_training_notes_once_that_a_shipped_environment_was_never_qualified(finished: FinishedRun) -> None:
    note = "Environment frozen_lake comes with erl-pipeline, so nothing has to be done. To check its tasks"
    assert finished.training.errors.count(note) == 1
    assert "warning: environment" not in finished.training.errors
    sentence = "environment frozen_lake was never qualified in this store as it is now configured"
    report = (finished.store / "runs" / "small" / "report.html").read_text(encoding="utf-8")
    assert f"E{sentence[1:]}." in report


@pytest.mark.parametrize("command", [("plan",), ("env", "show"), ("env", "play")])
def test_a_file_that_is_not_there_is_named_with_the_folder_that_was_looked_in(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path in a configuration is seen from where the command runs, not from the configuration."""
    config = tmp_path / "rhymes" / "rhymes.yaml"
    config.parent.mkdir()
    environment = "environment: {type: questions, training_file: rhymes/questions.jsonl}"
    policy = "policy: {type: pretrained, model: somewhere}"
    config.write_text(f"name: rhymes\niterations: 1\n{environment}\n{policy}\n")
    monkeypatch.chdir(config.parent)
    refused = invoke(*command, config)
    assert refused.status == 2
    assert "rhymes/questions.jsonl cannot be read: No such file or directory" in refused.errors
    assert f"the path begins at {config.parent}" in refused.errors
