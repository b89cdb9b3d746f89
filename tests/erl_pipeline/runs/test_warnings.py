"""Warnings of a run that does not learn."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path

import polars as pl
import pytest

from erl_pipeline.config.pipeline import WarningsConfig
from erl_pipeline.evaluation.history import StageRecord
from erl_pipeline.runs.state import write_run_report
from erl_pipeline.runs.warnings import rollout_warnings, settings_warnings, update_warnings
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError, StoreError
from storage.runs.documents import read_warnings
from storage.runs.run import RunStore
from tests.erl_pipeline.runs.small_runs import go, ids, small
from tests.stage_records import stage_record

LEARNS = {
    "groups_first_attempt": 4.0,
    "zero_advantage_groups_first_attempt": 3.0,
    "groups_reflection": 2.0,
    "zero_advantage_groups_reflection": 2.0,
    "optimizer_steps": 1.0,
    "entropy": 0.4,
    "mismatch_mean": 1e-7,
}
NOTHING = {**LEARNS, "zero_advantage_groups_first_attempt": 4.0, "optimizer_steps": 0.0, "entropy": 0.0}


def kinds(settings: WarningsConfig, *updates: Mapping[str, float]) -> list[str]:
    iterations: list[list[StageRecord]] = [
        [stage_record(number, "generate_rollouts"), stage_record(number, "update_policy", numbers)]
        for number, numbers in enumerate(updates, start=1)
    ]
    return [found.kind for found in update_warnings(settings, iterations)]


def test_no_advantage_is_told_after_some_iterations_in_a_row() -> None:
    settings = WarningsConfig()
    assert kinds(settings, LEARNS, NOTHING, NOTHING) == []
    assert kinds(settings, NOTHING, LEARNS, NOTHING) == []
    assert kinds(settings, NOTHING, NOTHING) == []
    assert kinds(settings, NOTHING, NOTHING, NOTHING) == ["no_advantage"]
    assert kinds(WarningsConfig(no_advantage=1), NOTHING) == ["no_advantage"]
    assert kinds(WarningsConfig(no_advantage=None), NOTHING, NOTHING, NOTHING) == []


def test_steps_of_a_kl_term_alone_are_no_learning_either() -> None:
    steps = {**NOTHING, "optimizer_steps": 2.0, "entropy": 0.4}
    assert kinds(WarningsConfig(no_advantage=1), steps) == ["no_advantage"]


def test_entropy_and_mismatch_have_thresholds() -> None:
    settings = WarningsConfig(entropy=0.05, mismatch=0.2)
    assert kinds(settings, {**LEARNS, "entropy": 0.05, "mismatch_mean": 0.2}) == []
    assert kinds(settings, {**LEARNS, "entropy": 0.049, "mismatch_mean": 0.21}) == ["entropy", "mismatch"]
    assert kinds(WarningsConfig(entropy=None, mismatch=None), {**LEARNS, "mismatch_mean": 9.0}) == []


def test_an_update_without_a_step_says_nothing_of_the_policy() -> None:
    assert kinds(WarningsConfig(), NOTHING) == []


def test_a_group_of_one_is_told_before_anything_runs() -> None:
    (found,) = settings_warnings(WarningsConfig(), 1)
    assert (found.kind, found.setting) == ("group_size", "rollouts.group_size")
    assert list(settings_warnings(WarningsConfig(), 2)) == []
    assert list(settings_warnings(WarningsConfig(no_advantage=None), 1)) == []


def rows(*given: tuple[str, str, bool]) -> pl.DataFrame:
    return pl.DataFrame(given, schema=["role", "finish_reason", "truncated"], orient="row")


@pytest.mark.parametrize(
    ("ill_formed", "of", "told"), [(2, 2, ["ill_formed"]), (1, 2, []), (0, 2, []), (9, 9, ["ill_formed"])]
)
def test_every_text_of_a_role_is_ill_formed(ill_formed: int, of: int, told: list[str]) -> None:
    attempts = [("first_attempt", "done", False)] * 3
    texts = [("reflection", "ill_formed" if n < ill_formed else "stop", False) for n in range(of)]
    found = list(rollout_warnings(WarningsConfig(), rows(*attempts, *texts)))
    assert [each.kind for each in found] == told
    assert all(each.text.startswith(f"All of {of} texts of role reflection are ill-formed") for each in found)


def test_a_share_can_be_enough() -> None:
    table = rows(*[("reflection", "ill_formed", False)] * 3, ("reflection", "stop", False))
    assert list(rollout_warnings(WarningsConfig(), table)) == []
    (found,) = rollout_warnings(WarningsConfig(ill_formed=0.75), table)
    assert found.text.startswith("75 % of 4 texts of role reflection")


def test_every_completion_is_cut_off() -> None:
    cut, whole = ("first_attempt", "context", True), ("reflection", "stop", False)
    assert [each.kind for each in rollout_warnings(WarningsConfig(), rows(cut, cut))] == ["cut_off"]
    assert list(rollout_warnings(WarningsConfig(), rows(cut, whole))) == []
    assert list(rollout_warnings(WarningsConfig(cut_off=None), rows(cut, cut))) == []


def test_a_share_of_what_was_not_scored_is_told() -> None:
    failed, done = ("first_attempt", "environment_error", True), ("first_attempt", "done", False)
    (found,) = rollout_warnings(WarningsConfig(), rows(failed, *[done] * 19))
    assert found.kind == "not_scored"
    assert found.text.startswith("5 % of 20 trajectories were not scored")
    assert list(rollout_warnings(WarningsConfig(), rows(failed, *[done] * 20))) == []
    not_rated = ("first_attempt", "not_rated", False)
    assert list(rollout_warnings(WarningsConfig(), rows(not_rated, not_rated, done))) == []
    # It is in no other share: the one trajectory that was scored was not cut off.
    assert [each.kind for each in rollout_warnings(WarningsConfig(), rows(failed, done))] == ["not_scored"]


def test_a_judge_is_not_looked_at() -> None:
    table = rows(("judge", "ill_formed", True), ("first_attempt", "done", False))
    assert list(rollout_warnings(WarningsConfig(), table)) == []


# In the small run both attempts at each of two tasks fail.
NO_ADVANTAGE = {"no_advantage": 1, "ill_formed": None, "cut_off": None}


def test_a_warning_is_said_once_recorded_and_shown(store: Path, tmp_path: Path) -> None:
    config = small(warnings=NO_ADVANTAGE, metrics=["tensorboard"])
    (said,) = go(config, store, 4).warnings
    assert said.startswith("iteration ")
    assert "In this iteration no trajectory of update_policy had an advantage" in said
    assert said.endswith("See rollouts.group_size, rollouts.selection and the environment's reward.")
    (recorded,) = read_warnings(str(store), "small")
    assert (recorded.kind, recorded.sentence) == ("no_advantage", said)
    assert go(config, store, 5).warnings == []
    run = RunStore(str(store)).open("small")
    report = write_run_report(ArtifactStore(str(store)), run, tmp_path / "report.html")
    assert html.escape(said[1:]).replace("&#x27;", "&#39;") in report.read_text(encoding="utf-8")
    events = b"".join(
        path.read_bytes() for path in sorted((store / "runs/small/tensorboard").glob("events*"))
    )
    assert said.encode() in events


def test_a_gate_stops_the_run_until_it_is_taken_away(store: Path) -> None:
    stopping = small(warnings={**NO_ADVANTAGE, "stop_on": ["no_advantage"]})
    with pytest.raises(ConfigError, match=r"warnings\.stop_on: no_advantage stops the run"):
        go(stopping, store, 6)
    reached = max(place.iteration for place in ids(store))
    assert reached < 6
    with pytest.raises(ConfigError, match=r"take no_advantage out of warnings\.stop_on"):
        go(stopping, store, 6)
    assert max(place.iteration for place in ids(store)) == reached
    go(small(warnings=NO_ADVANTAGE), store, reached + 1)
    assert max(place.iteration for place in ids(store)) == reached + 1


def test_a_record_that_was_changed_is_refused(store: Path) -> None:
    go(small(warnings=NO_ADVANTAGE), store, 4)
    path = store / "runs/small/warning-no_advantage.json"
    path.write_text(path.read_text().replace("iteration", "repetition"))
    with pytest.raises(StoreError, match="was changed after it was written"):
        read_warnings(str(store), "small")
