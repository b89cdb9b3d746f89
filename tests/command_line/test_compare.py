"""A small real comparison, and comparisons that are stopped, killed or broken."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from command_line.compare.rounds import Rounds
from erl_pipeline.comparison.bootstrap import Outcomes
from erl_pipeline.comparison.design import make_design
from erl_pipeline.comparison.measures import Budgets
from storage.runs.run import RunStore
from storage.runs.split_openings import openings
from tests.command_line.invoke import Result, invoke
from tests.erl_pipeline.comparison.curves import curve
from tests.erl_pipeline.comparison.designs import write_arms, write_base
from tests.erl_pipeline.runs.small_runs import hashes
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
RUNS = [f"small.{arm}.seed{seed}" for seed in (0, 1) for arm in ("erl", "rlvr")]


@dataclass(frozen=True)
class Compared:
    """A folder with a configuration, a finished comparison of it, and what the comparison printed."""

    folder: Path
    printed: Result

    @property
    def document(self) -> Any:
        """The JSON document that it wrote."""
        return json.loads((self.folder / "out" / "comparison.json").read_text())


def words(folder: Path, store: str = "store") -> list[object]:
    """The command for two arms and two seeds, in parallel."""
    base, to = folder / "small.yaml", ["--store", folder / store, "--output", folder / "out", "--allow-dirty"]
    return ["compare", base, "--methods", "erl,rlvr", "--seeds", "2", "--jobs", "2", *to]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    folder = tmp_path_factory.mktemp("compared")
    write_base(folder)
    printed = invoke(*words(folder))
    assert printed.status == 0, printed.errors
    return Compared(folder, printed)


def without_times(document: Any) -> Any:
    """The arms of a document, without their times."""
    for arm in document["arms"].values():
        for seed in arm["seeds"].values():
            del seed["measures"]["seconds_at_tokens"]
            for point in seed["curve"]:
                del point["seconds"]
    return document["arms"], [
        (row["arm"], row["difference"]["by_seed"])
        for rows in document["differences"].values()
        for row in rows
    ]


def test_all_arms_are_read_off_at_equal_tokens_and_steps(compared: Compared) -> None:
    document = compared.document
    assert (document["baseline"], document["seeds"], document["failures"]) == ("erl", [0, 1], [])
    assert document["test_tasks"] == 6
    tokens = document["budgets"]["generated_tokens"]
    curves = [seed["curve"] for arm in document["arms"].values() for seed in arm["seeds"].values()]
    assert len(curves) == 4
    assert all(curve[0]["iteration"] == 0 and curve[-1]["generated_tokens"] >= tokens for curve in curves)
    for arm in document["arms"].values():
        for name, (low, high) in arm["over_seeds_and_tasks"].items():
            assert 0 <= low <= arm["summary"][name]["mean"] <= high <= 1
    # RLVR generates fewer tokens in an iteration, so its runs continued until they had generated as many.
    assert min(curve[-1]["iteration"] for curve in curves[2:]) > 2


def test_progress_is_one_count_of_the_runs(compared: Compared) -> None:
    """Neither the start that they share nor the iterations that some runs need later begin another count."""
    counts = re.findall(r"^\[(.*?)\] ", compared.printed.errors, re.MULTILINE)
    assert counts == ["1 of 4", "2 of 4", "3 of 4", "4 of 4"]
    assert ": the start\n" in compared.printed.errors


def test_all_runs_begin_with_one_checkpoint_that_was_made_once(compared: Compared) -> None:
    starts = {
        artifact_id
        for run in RUNS
        for artifact_id in hashes(compared.folder / "store", run)
        if (compared.folder / "store/artifacts/bootstrap" / artifact_id).exists()
    }
    assert len(starts) == 1
    assert len(list((compared.folder / "store/artifacts/bootstrap").iterdir())) == 1


def test_tables_name_the_number_of_comparisons(compared: Compared) -> None:
    page = (compared.folder / "out" / "comparison.md").read_text()
    for text in (compared.printed.output, page):
        assert "1 comparison in this table, 4 in all tables of differences." in text
        assert "erl - rlvr" in text
        assert "reward, second attempt" in text
    assert compared.document["comparisons"] == 4


def test_charts_are_written_for_success_rewards_and_numbers_of_training(compared: Compared) -> None:
    names = {path.stem for path in (compared.folder / "out").glob("*.svg")}
    assert {"success_by_tokens", "success_by_steps", "rewards_erl", "rewards_rlvr"} <= names
    assert any("success_second_attempt" in name for name in names)
    assert (compared.folder / "out" / "success_by_tokens.svg").read_text().startswith("<svg")


def test_a_finished_comparison_is_answered_from_the_store(compared: Compared) -> None:
    again = invoke(*words(compared.folder), "--json")
    assert "4 of 4 runs finished already." in again.errors
    assert "[1 of" not in again.errors
    assert without_times(again.json) == without_times(compared.document)
    assert again.json["test_split"] == {**compared.document["test_split"], "opened_before": []}
    assert len(list((compared.folder / "store/test_splits").iterdir())) == 1
    assert "was opened before" not in again.errors


def test_what_other_code_has_evaluated_beyond_the_plan_does_not_count(
    compared: Compared, tmp_path: Path
) -> None:
    """As where the code was edited after a comparison in which the run had gone on for equal tokens: the same
    command makes only the planned iterations again."""
    shutil.copytree(compared.folder / "store", tmp_path / "store")
    runs = RunStore(str(tmp_path / "store"))
    of_another = runs.open("small.rlvr.seed1").stages()
    other = next(each for each in of_another if (each.stage, each.iteration) == ("evaluate_on_test", 1))
    run = runs.open("small.rlvr.seed0")
    with run.lock():
        run.record(50, other.stage, other.artifact_id, kind=other.kind, reused=False, seconds=0.0)
    shutil.copy(compared.folder / "small.yaml", tmp_path)
    again = invoke(*words(tmp_path), "--json")
    assert "4 of 4 runs finished already." in again.errors
    assert without_times(again.json) == without_times(compared.document)


def test_an_arm_that_fails_is_told_of_and_the_others_are_compared(compared: Compared) -> None:
    # There are 32 training tasks.
    path = write_arms(
        compared.folder, erl={}, broken={"rollouts.tasks_per_iteration": 99}, bare={"method.memory": False}
    )
    result = invoke(
        *("compare", path, "--seeds", "2", "--jobs", "2", "--store", compared.folder / "store"),
        *("--output", compared.folder / "broken", "--json", "--allow-dirty", "--set", "name=small"),
    )
    assert result.status == 1
    assert "small.broken.seed0: failed: rollouts.tasks_per_iteration: 99 tasks are asked for" in result.errors
    assert "2 runs failed; run the same command to try again." in result.errors
    assert [failure["run"] for failure in result.json["failures"]] == [
        "small.broken.seed0",
        "small.broken.seed1",
    ]
    assert [row["arm"] for row in result.json["differences"]["area_by_tokens"]] == ["bare"]
    # Another comparison has seen these test tasks, and everything that is written or printed begins with it.
    said = "This test split was opened before: 1 other comparison had seen 6 of its 6 tasks, as they are or "
    said += "turned (small, "
    page = (compared.folder / "broken" / "comparison.md").read_text()
    assert page.startswith(f"**{said}")
    assert said in result.errors
    (before,) = result.json["test_split"]["opened_before"]
    assert before["settings_digest"] == compared.document["test_split"]["settings_digest"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--seeds", "1"], "--seeds 1: allowed are 2 and more"),
        (["--methods", "erl,ppo"], "arm ppo: no such arm"),
        (["--set", "environment.test_boards=null"], "set environment.test_boards: 256"),
        (["--set", "rollouts.group_size=6"], "run small.erl.seed0 exists with other settings"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_trained(
    compared: Compared, options: list[str], problem: str
) -> None:
    refused = invoke(*words(compared.folder), *options)
    assert refused.status == 2
    assert problem in refused.errors
    assert "[1 of" not in refused.errors


def test_code_that_is_not_committed_is_refused_before_anything_is_trained(
    compared: Compared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("command_line.train.run.code_version", lambda: "2dabdf0-dirty")
    refused = invoke(*words(compared.folder, "untouched")[:-1])
    assert refused.status == 2
    assert "the code of erl-pipeline has changes that are not committed" in refused.errors
    assert "add --allow-dirty for a trial" in refused.errors
    assert not (compared.folder / "untouched").exists()


def searching(folder: Path, *rates: float) -> list[object]:
    """The command for two arms that try two learning rates each, in a store of its own."""
    write_base(folder)
    searched = {"search": {"optimizer.learning_rate": list(rates)}}
    rlvr = {"method": {"type": "rlvr"}, **searched}
    path = write_arms(folder, {"budget": 2, "seeds": 1}, bare={"method.memory": False, **searched}, rlvr=rlvr)
    words = ["--seeds", "2", "--iterations", "1", "--store", folder / "store", "--output", folder / "out"]
    return ["compare", path, *words, "--json", "--allow-dirty"]


def test_a_trial_that_says_hardly_anything_is_not_trained_for_ever(tmp_path: Path) -> None:
    write_base(tmp_path)
    arm = {"search": {"optimizer.learning_rate": [1e-4, 1e-3]}}
    path = write_arms(tmp_path, {"budget": 2, "seeds": 1}, one=arm, two={"method": {"type": "rlvr"}, **arm})
    design = make_design(path, [], 2, iterations=2)
    runs = [run for trial in design.trials for run in trial.runs]
    rates = dict(zip((run.config.name for run in runs), (50, 30, 1, 0), strict=True))

    def longer(iterations: int) -> list[int]:
        """By how many iterations the trials go on that have too few of 100 tokens."""
        curves = {name: curve(rate, *[0.5] * (iterations + 1)) for name, rate in rates.items()}
        rounds = Rounds(design, str(tmp_path / "store"), 1, 1, Event(), print)
        return [task.iterations for task in rounds._longer_trials(runs, curves, 100)]

    assert longer(2) == [4, 8, 8]  # 4 * 30 tokens suffice
    assert longer(4) == [8, 8]
    assert longer(8) == []


def test_a_run_that_says_hardly_anything_is_ended_and_its_last_success_stays(tmp_path: Path) -> None:
    """Of two seeds one generates 1 token in each iteration, the other 30, and 100 are asked for."""
    write_base(tmp_path)
    design = make_design(write_arms(tmp_path, one={}, two={"method": {"type": "rlvr"}}), [], 2, iterations=2)
    rounds = Rounds(design, str(tmp_path / "store"), 1, 1, Event(), print)

    def longer(*iterations: int) -> list[int]:
        rounds.curves = {
            "one": {
                seed: curve(rate, *[0.5] * (count + 1))
                for seed, rate, count in zip((0, 1), (1, 30), iterations, strict=True)
            }
        }
        return [task.iterations for task in rounds._too_short(Budgets(100, 0))]

    assert longer(2, 2) == [20, 4]
    assert longer(20, 4) == []
    outcomes: dict[str, dict[int, Outcomes]] = {"one": {seed: {"task": [True, False]} for seed in (0, 1)}}
    assert rounds._end_early(100, outcomes) == ("arms.one.seed0",)
    assert outcomes == {"one": {0: {"task": [True, False, False]}, 1: {"task": [True, False]}}}
    ended, other = (rounds.curves["one"][seed] for seed in (0, 1))
    assert [(each.generated_tokens, each.success) for each in ended[-2:]] == [(20, 0.5), (100, 0.5)]
    assert other[-1].generated_tokens == 120


def test_settings_are_searched_on_held_out_tasks_before_the_test(tmp_path: Path) -> None:
    result = invoke(*searching(tmp_path, 1e-4, 1e-3))
    assert result.status == 0, result.errors
    search = result.json["search"]
    assert [trial["arm"] for trial in search["trials"]] == ["bare", "bare", "rlvr", "rlvr"]
    runs = [run for trial in search["trials"] for run in trial["runs"]]
    assert all(re.fullmatch(r"arms\.(bare|rlvr)\.search-[0-9a-f]{6}\.seed1000", run) for run in runs)
    for trial in search["trials"]:
        assert trial["score"] == trial["scores"][0]
        if trial["chosen"]:
            (rate,) = trial["settings"]
            assert result.json["overrides"][trial["arm"]][-1] == rate
            assert result.json["settings"][trial["arm"]]["optimizer"]["learning_rate"] == float(rate[24:])
    # Trials of RLVR generate less in an iteration, and were trained for longer than the one of the others.
    assert search["read_off_at"]["generated_tokens"] <= min(search["generated_tokens"].values()) / 2
    (opening,) = openings(str(tmp_path / "store"))
    evaluated = [
        json.loads(path.read_text()) for path in (tmp_path / "store").glob("artifacts/*/*/manifest.json")
    ]
    on_test = {each["run"] for each in evaluated if each["stage"] == "evaluate_on_test"}
    assert len(on_test) == 4
    assert on_test.isdisjoint(runs)
    ends = [datetime.fromisoformat(each["finished_at"]) for each in evaluated if each["run"] in runs]
    assert max(ends) < opening.opened


def test_nothing_of_the_test_split_is_seen_if_a_trial_fails(tmp_path: Path) -> None:
    broken = "rollouts.tasks_per_iteration=99"  # There are 32 training tasks.
    result = invoke(*searching(tmp_path, 1e-4, 1e-3), "--set", broken)
    assert result.status == 2
    assert (
        "trials of the search failed, so nothing is evaluated on test tasks: arms.bare.search-"
        in result.errors
    )
    assert openings(str(tmp_path / "store")) == []
    assert not (tmp_path / "store/artifacts/evaluate_on_test").exists()


@pytest.mark.slow
def test_a_comparison_that_was_stopped_and_killed_ends_with_the_same_figures(compared: Compared) -> None:
    store = compared.folder / "killed"
    stopped = begin(compared.folder)
    wait_for_artifact(stopped, store, "rollout_shard")
    os.killpg(stopped.pid, signal.SIGINT)
    _, errors = stopped.communicate(timeout=120)
    assert (stopped.returncode, "continue with:" in errors) == (130, True)

    killed = begin(compared.folder)
    wait_for_artifact(killed, store, "update_policy")
    killed.kill()  # Its workers notice that it has ended, and end too.
    killed.communicate(timeout=120)
    wait_until_gone(killed.pid)

    done = invoke(*words(compared.folder, "killed"))
    assert done.status == 0, done.errors
    for run in RUNS:
        assert hashes(store, run) == hashes(compared.folder / "store", run)


def begin(folder: Path) -> subprocess.Popen[str]:
    """The same command in a process group of its own, on another store."""
    return subprocess.Popen(
        [sys.executable, "-m", "command_line.main", *map(str, words(folder, "killed"))],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )


def wait_for_artifact(process: subprocess.Popen[str], store: Path, stage: str) -> None:
    """Wait until an artifact of a stage is committed."""

    def committed() -> bool:
        assert process.poll() is None, "it ended before"
        return any((store / "artifacts" / stage).glob("*/manifest.json"))

    wait_for(f"an artifact of {stage}", committed, interval=0.01)


def wait_until_gone(group: int) -> None:
    """Wait until all processes of a group have ended."""

    def gone() -> bool:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        return False

    wait_for("the end of the driver's workers", gone)
