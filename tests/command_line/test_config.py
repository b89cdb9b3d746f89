from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from erl_pipeline.config import plugins as installed
from erl_pipeline.config.loading import load_config
from erl_pipeline.runs.environment_checks import templates_without_effect
from tests.command_line.invoke import SMALL, invoke

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(SMALL)
    return tmp_path / "small.yaml"


def test_show_prints_the_resolved_whole_and_it_loads_as_the_same(small: Path, tmp_path: Path) -> None:
    shown = invoke("config", "show", small, "--set", "method.memory=off", "--set", "seed=3").output
    assert yaml.safe_load(shown)["seed"] == 3
    (tmp_path / "shown.yaml").write_text(shown)
    assert load_config(tmp_path / "shown.yaml") == load_config(small, ["method.memory=off", "seed=3"])


def test_show_as_json(small: Path) -> None:
    shown = invoke("config", "show", small, "--json").json
    assert shown["rollouts"]["group_size"] == 4
    assert shown["sampling"]["temperature"] == 1.0


def test_check_says_valid_or_what_is_wrong(small: Path) -> None:
    good = invoke("config", "check", small)
    assert (good.status, good.output) == (0, f"{small} is valid: run small, 2 iterations of erl\n")
    bad = invoke("config", "check", small, "--set", "seed=-1")
    assert (bad.status, bad.output) == (2, "")
    assert bad.errors == f"error: {small}: 1 problem\n  --set: seed: -1; allowed: at least 0\n"


def test_templates_that_nothing_reads_are_told_of(small: Path) -> None:
    """FrozenLake for the tiny policy has prompts of its own, FrozenLake in sentences has none."""
    given = ["--set", "method.prompts.reflection='Think. {{ feedback }}'"]
    sentence = (
        "method.prompts.reflection: without effect, since environment frozen_lake with these settings has "
        "prompts of its own"
    )
    assert invoke("config", "check", small, *given, "--json").json["without_effect"] == [sentence]
    assert f"Warning: {sentence}" in told(invoke("config", "check", small, *given).output)
    assert invoke("config", "check", small, "--json").json["without_effect"] == []
    prose = ["environment.format=prose", "policy={type: pretrained, model: MODEL}"]
    assert templates_without_effect(load_config(small, [given[1], *prose])) == []


def test_what_of_the_files_is_left_out_is_told_before_training(small: Path, tmp_path: Path) -> None:
    train, held = tmp_path / "train.jsonl", tmp_path / "held.jsonl"
    boards = [["SFG"], ["GFS"], ["SF", "FG"], ["SF", "GF"], ["SF", "FF", "GF"], ["FS", "FG"]]
    lines = [
        json.dumps({"task_id": f"t{n}", "board": board, "max_steps": 2}) for n, board in enumerate(boards)
    ]
    train.write_text("\n".join(lines[1:]))
    held.write_text(lines[0])
    words = [f"environment.task_file={train}", f"environment.held_out_file={held}", "evaluation.tasks=1"]
    given = [word for each in words for word in ("--set", each)]
    sentence = (
        f"1 of 5 boards of task file {train} are left out: each is a board of {held} turned or mirrored "
        "(t1); environment.twins: any_split would keep them"
    )
    assert invoke("config", "check", small, *given, "--json").json["left_out"] == [sentence]
    assert f"Left out: {sentence}" in told(invoke("config", "check", small, *given).output)
    store = tmp_path / "store"
    trained = invoke("train", small, *given, "--iterations", "1", "--no-prefect", "--store", store)
    assert trained.status == 0
    assert f"{sentence}." in told(trained.output + trained.errors)


def told(text: str) -> str:
    """What was printed, in one line."""
    return " ".join(text.split())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_ready_configuration_loads(path: Path) -> None:
    """Some name files and models that users get first, so that `check` refuses them here."""
    assert invoke("config", "show", path).status == 0


QUESTIONS = """
name: sums
iterations: 1
environment: {type: questions, training_file: sums.jsonl, held_out_share: 0.25}
evaluation: {tasks: 2}
rollouts: {tasks_per_iteration: 4}
policy: {type: pretrained, model: model}
"""


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("environment.training_file=no.jsonl", "environment.training_file: no.jsonl cannot be read: No such"),
        (
            "policy.model=no/such/model",
            "policy.model no/such/model is neither a folder here nor a model on the",
        ),
        ("evaluation.tasks=12", "evaluation.tasks: 12 held-out questions are asked for, but there are 2"),
        ("rollouts.tasks_per_iteration=9", "rollouts.tasks_per_iteration: 9 tasks are asked for, but there"),
    ],
)
def test_what_is_named_or_asked_for_and_not_there_is_refused(
    setting: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"question": f"What is {each} + 1?", "answer": str(each + 1)}) for each in range(10)]
    Path("sums.jsonl").write_text("\n".join(lines))
    Path("sums.yaml").write_text(QUESTIONS)
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")
    assert invoke("config", "check", "sums.yaml").status == 0
    for command in (["config", "check"], ["plan"], ["train", "--no-prefect"]):
        refused = invoke(*command, "sums.yaml", "--set", setting)
        assert (refused.status, refused.output) == (2, "")
        assert said in refused.errors
    assert not Path("store/artifacts").exists()
    # Nothing was made for the run, so that it takes the settings that were mended.
    shown = invoke("plan", "sums.yaml", "--set", "evaluation.tasks=1").output
    assert "refuses" not in shown


def test_a_broken_plug_in_that_a_configuration_names_is_told_with_its_package(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "site" / "maze_world-0.3.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: maze-world\nVersion: 0.3\n")
    (metadata / "entry_points.txt").write_text("[erl_pipeline.environments]\nmaze = maze_world:MAZE\n")
    (tmp_path / "site" / "maze_world.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    installed._find.cache_clear()
    try:
        bad = invoke("config", "check", small, "--set", "environment=maze")
        good = invoke("config", "check", small)
        listed = invoke("plugins", "--json").json["broken"]
    finally:
        monkeypatch.undo()
        installed._find.cache_clear()
    assert (bad.status, bad.output) == (2, "")
    assert "error: maze of package maze-world cannot be used: its import fails with Module" in bad.errors
    assert "No module named 'no_such_module'" in bad.errors
    assert good.status == 0
    assert [(each["type"], each["distribution"]) for each in listed] == [("maze", "maze-world")]
