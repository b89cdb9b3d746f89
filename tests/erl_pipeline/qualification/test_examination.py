"""Each fault of an environment is found by the check for it; an environment without faults qualifies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from erl_pipeline.qualification.check import MEANINGS, CheckResult
from erl_pipeline.qualification.examination import Examined, examine
from erl_pipeline.qualification.served_environment import EnvironmentSpec
from storage.errors import InputError


@pytest.fixture
def _sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment `sums`, installed where processes that are started from now on find it."""
    shutil.copy(Path(__file__).with_name("sums.py"), tmp_path / "sums_world.py")
    info = tmp_path / "sums_world-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sums-world\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[erl_pipeline.environments]\nsums = sums_world:ENVIRONMENT\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def examined(fault: str = "", step_seconds: float = 20.0) -> Examined:
    settings = {"type": "sums", "fault": fault}
    return examine(EnvironmentSpec("sums", settings, 0, 10, step_seconds), tasks=12, answers=60)


def failed(found: Examined) -> list[CheckResult]:
    return [check for check in found.qualification.checks if check.verdict == "failed"]


@pytest.mark.usefixtures("_sums")
def test_an_environment_without_a_fault_is_qualified() -> None:
    found = examined()
    assert [(check.name, check.verdict) for check in found.qualification.checks] == [
        (name, "passed") for name in MEANINGS
    ]
    counted = {check.name: check.counted for check in found.qualification.checks}
    # 20 training and 10 held-out tasks; 12 attempted, each with the gold, an empty and a wrong answer.
    assert (counted["same_tasks"], counted["gold_answers"], counted["wrong_answers"]) == (30, 12, 24)
    assert (counted["hostile_answers"], counted["feedback_and_rewards"]) == (60, 96)
    assert (found.tasks, found.answers) == (12, 60)


@pytest.mark.usefixtures("_sums")
@pytest.mark.parametrize(
    ("fault", "check", "said"),
    [
        ("follows the hash seed", "same_tasks", "in a process with another hash seed"),
        ("trains on a held-out task", "tasks_apart", "held-out task sum-held-19 is the training task"),
        ("never rewards", "gold_answers", "gets reward 0, not 1"),
        ("rewards anything", "wrong_answers", "'xyz' gets reward 0.1"),
        ("raises on strange digits", "hostile_answers", "ValueError: invalid literal for int()"),
        ("dies of a megabyte", "hostile_answers", "the process ended with status 9: out of memory"),
        ("tells the answer in the feedback", "nothing_leaks", "what the environment says holds the answer"),
        ("tells the answer in the prompt", "nothing_leaks", "the prompt holds the answer"),
        ("tells the seed in the prompt", "nothing_leaks", "the prompt holds the seed"),
        ("tells the task id in the prompt", "nothing_leaks", "its prompt holds its task id 'sum-"),
        ("prints the payload", "nothing_leaks", "its prompt holds the payload's fields numbers, seed"),
        ("says nothing", "feedback_and_rewards", "is empty"),
    ],
)
def test_a_fault_is_found_by_its_check(fault: str, check: str, said: str) -> None:
    (found,) = failed(examined(fault))
    assert found.name == check
    assert said in found.problem


@pytest.mark.usefixtures("_sums")
def test_nobody_says_that_nothing_leaks_where_the_answers_are_not_known() -> None:
    checks = {check.name: check for check in examined("gives no gold answers").qualification.checks}
    assert "KeyError" in checks["gold_answers"].problem
    assert checks["nothing_leaks"].verdict == "not applicable"


@pytest.mark.usefixtures("_sums")
def test_a_reward_that_is_no_number_fails_both_who_gave_and_who_got_it() -> None:
    wrong, rewards = failed(examined("rewards with nan"))
    assert (wrong.name, rewards.name) == ("wrong_answers", "feedback_and_rewards")
    assert "the reward is nan, not a finite number" in rewards.problem


@pytest.mark.usefixtures("_sums")
def test_a_step_that_never_returns_is_ended_and_named() -> None:
    hung, late = failed(examined("hangs on control characters", step_seconds=0.5))
    assert (hung.name, late.name) == ("hostile_answers", "steps_in_time")
    assert hung.problem == late.problem
    assert "'\\x00': step did not return within 0.5 seconds" in hung.problem


@pytest.mark.usefixtures("_sums")
def test_an_environment_with_a_tool_is_called_well_and_badly() -> None:
    # There are 131 fixed answers and calls; mixtures of them follow.
    found = examine(
        EnvironmentSpec("sums", {"type": "sums", "by_tool": True}, 0, 10, 20.0), tasks=12, answers=140
    )
    assert failed(found) == []
    gold = next(check for check in found.qualification.checks if check.name == "gold_answers")
    assert gold.counted == 12


@pytest.mark.usefixtures("_sums")
def test_who_stops_it_leaves_no_process() -> None:
    class Stopped(Exception):
        pass

    def stop() -> None:
        raise Stopped

    before = psutil.Process().children()  # a server of earlier tests may still run
    with pytest.raises(Stopped):
        examine(EnvironmentSpec("sums", {"type": "sums"}, 0, 10, 20.0), 12, 60, stopped=stop)
    assert set(psutil.Process().children()) <= set(before)


@pytest.mark.usefixtures("_sums")
def test_a_person_plays_it_by_its_tool(tmp_path: Path) -> None:
    config = tmp_path / "sums.yaml"
    config.write_text(
        "name: sums\niterations: 1\nenvironment: {type: sums, by_tool: true}\n"
        "policy: {type: pretrained, model: somewhere}\nevaluation: {tasks: 10}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "command_line.main", "env", "play", str(config), "--task", "sum-held-20"],
        input='17\n/call give {"total": "x"}\n/call give {"total": 47}\n',
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    # 20 + (20 * 7 % 41 + 10) is 20 + 27.
    assert "What is 20 + 27?" in done.stdout
    assert "[tool give] Give the sum." in done.stdout
    assert "[user]\nCall the tool.\n\n[tool give]\nIt takes a total.\n\n[tool give]\nThank" in done.stdout
    assert "[feedback]\nThe sum is right.\n\nReward 1: success, after 3 turns." in done.stdout


def test_settings_that_are_no_environments_are_the_users_mistake() -> None:
    with pytest.raises(InputError, match="no such type of environments"):
        examine(EnvironmentSpec("no_such_type", {}, 0, 10, 20.0), 12, 60)
