"""Packages that are installed in addition to the project: they are found, trained, resumed, and their code is
part of recipes."""

from pathlib import Path

import pytest

from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from tests.command_line.invoke import Result
from tests.examples.conftest import Trained
from tests.examples.installed import NAMES, ROOT, Site, config_of, small


def test_all_are_listed_with_package_and_version(site: Site) -> None:
    listed = site.erl_pipeline("plugins", "--json").json
    found = {(each["group"], each["type"]): each for each in listed["plugins"]}
    assert listed["broken"] == []
    environment, method = found["environments", "guess_number"], found["methods", "best_of_n"]
    assert (environment["distribution"], environment["version"]) == ("erl-pipeline-guess-number", "0.1.0")
    assert (method["distribution"], method["version"]) == ("erl-pipeline-best-of-n", "0.1.0")
    for group, name in (("advantages", "leave_one_out"), ("surrogates", "sapo")):
        assert found[group, name]["distribution"] == "erl-pipeline-own-objective"
    assert found["environments", "frozen_lake"]["distribution"] == "erl-pipeline"
    assert found["surrogates", "ppo"]["distribution"] == "erl-pipeline"


@pytest.mark.parametrize("name", NAMES)
def test_each_is_trained_from_its_configuration(trained: Trained, name: str) -> None:
    training = trained.training[name]
    assert training.status == 0, training.errors
    assert [row["iteration"] for row in training.json["rows"]] == [0, 1, 2]


def test_the_method_runs_its_own_stage_and_no_update(trained: Trained) -> None:
    entries = RunStore(str(trained.store)).open("best_of_n").stages()
    stages = [entry.stage for entry in entries if entry.iteration == 2]
    assert stages == ["rollout_shard", "generate_rollouts", "select_best", "fine_tune", "evaluate"]
    selected = next(entry for entry in entries if entry.stage == "select_best")
    counters = ArtifactStore(str(trained.store)).open(selected.artifact_id).manifest.counters
    assert counters["tasks_solved"] <= counters["sft_rows"]


def test_the_second_run_takes_the_cold_start_of_the_first(trained: Trained) -> None:
    reused = [line for line in trained.training["best_of_n"].errors.splitlines() if "Reused" in line]
    assert len(reused) == 1
    assert "of run guess_number (" in reused[0]
    assert "bootstrap" in reused[0]


def test_a_finished_run_is_not_trained_again(site: Site, trained: Trained) -> None:
    again = site.erl_pipeline(
        "train", config_of("best_of_n"), "--name", "best_of_n", "--store", trained.store, "--json", *small(),
        "--no-prefect",
    )  # fmt: skip
    assert again.errors.startswith("Run best_of_n is finished")
    assert again.json["worked"] is False


def test_no_file_of_the_project_names_an_example() -> None:
    packages = ("storage", "erl_pipeline", "flows", "command_line")
    sources = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    naming = [path for path in sources if any(name in path.read_text(encoding="utf-8") for name in NAMES)]
    assert naming == []


def plan(site: Site, trained: Trained, name: str = "guess_number") -> Result:
    """The plan of an example's finished run, by its configuration."""
    where = ("--store", trained.store, "--json", "--set", f"name={name}", *small())
    return site.erl_pipeline("plan", config_of(name), *where)


def test_an_edited_objective_changes_the_update_and_not_the_rollouts_before_it(
    site: Site, trained: Trained, tmp_path: Path
) -> None:
    edited = site.copy(tmp_path / "site")
    source = edited.folder / "own_objective" / "__init__.py"
    before = plan(site, trained, "own_objective").json
    assert before["computed"] == 0

    source.write_text(
        source.read_text().replace("POSITIVE, NEGATIVE = 1.0, 1.05", "POSITIVE, NEGATIVE = 1.0, 1.5")
    )
    after = plan(edited, trained, "own_objective").json
    reused = {(each["stage"], each["iteration"]) for each in after["artifacts"]} - {
        (each["stage"], each["iteration"]) for each in after["artifacts"] if each["why"]
    }
    assert {("bootstrap", None), ("generate_rollouts", 1)} <= reused
    why = {(each["stage"], each["iteration"]): each["why"] for each in after["artifacts"]}
    assert "the code of own_objective has changed" in why["update_policy", 1]


def test_an_edited_reward_is_another_plan_and_an_edited_comment_is_not(
    site: Site, trained: Trained, tmp_path: Path
) -> None:
    edited = site.copy(tmp_path / "site")
    source = edited.folder / "guess_number" / "environment.py"
    text = source.read_text()
    before = plan(site, trained).json
    assert before["computed"] == 0

    source.write_text(
        "# Seen again.\n" + text.replace("done=self._game.over,", "done=(self._game.over),  # Over.")
    )
    assert plan(edited, trained).json["artifacts"] == before["artifacts"]

    source.write_text(text.replace("return 1.0 if", "return 0.5 if"))
    assert source.read_text() != text
    after = plan(edited, trained).json
    ids = [{each["artifact_id"] for each in plan["artifacts"]} for plan in (before, after)]
    assert not ids[0] & ids[1]
    assert after["computed"] == len(ids[1])
    why = {each["stage"]: each["why"] for each in after["artifacts"]}
    for stage in ("prepare_tasks", "bootstrap", "rollout_shard", "evaluate"):
        assert "the code of guess_number has changed" in why[stage]
