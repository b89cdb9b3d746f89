"""The progress of a run, from ledgers written by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from erl_pipeline.plan.plan import POLICY, StageKey
from erl_pipeline.runs.planning import recorded_ids, whole_iterations
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.runs.state import (
    REPORTED_ITERATIONS,
    begun_iterations,
    completed_iterations,
    latest_checkpoint,
    policy_makers,
    renew_report,
)
from erl_pipeline.runs.train import trusted_places
from storage.artifacts.recipe import ArtifactKind
from storage.memory.versions import ForgetRequest
from storage.runs.ledger import LedgerEntry
from tests.command_line.ui.stores import write_page_store
from tests.erl_pipeline.runs.planned_runs import SOURCES, config, ids, plan

ERL, RLVR = config(), config("method=rlvr")
"""RLVR makes no distillation dataset, so its last stage is the policy update."""
STAGES = ("generate_rollouts", "index_memory", "update_policy", "build_distillation", "fine_tune")


def line(
    iteration: int | None, stage: str, artifact_id: str = "first", kind: ArtifactKind = "table"
) -> LedgerEntry:
    return LedgerEntry(
        iteration=iteration,
        stage=stage,
        kind=kind,
        key="",
        artifact_id=f"{artifact_id} {stage} {iteration}",
        reused=False,
        seconds=0.0,
        recorded_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def lines(iterations: Sequence[int]) -> list[LedgerEntry]:
    return [line(iteration, stage) for iteration in iterations for stage in STAGES]


THREE = [line(None, "prepare_tasks"), line(None, "bootstrap"), line(0, "evaluate"), *lines([1, 2, 3])]


def test_an_iteration_is_complete_with_its_last_checkpoint() -> None:
    assert completed_iterations(ERL, THREE) == 3
    assert completed_iterations(ERL, THREE[:-1]) == 2
    assert completed_iterations(RLVR, THREE[:-1]) == 3
    assert completed_iterations(ERL, []) == 0
    # `train --iterations 4` may have been stopped in iteration 3 of a configuration with fewer.
    assert begun_iterations(THREE[:-1]) == 3
    assert begun_iterations([]) == 0


def test_the_latest_checkpoint_is_that_of_the_last_training_stage() -> None:
    checkpoints = {
        iteration: found.artifact_id
        for iteration in (0, 1, 3, None)
        if (found := latest_checkpoint(ERL, THREE, iteration)) is not None
    }
    assert checkpoints == {
        0: "first bootstrap None",
        1: "first fine_tune 1",
        3: "first fine_tune 3",
        None: "first fine_tune 3",
    }
    assert latest_checkpoint(ERL, THREE, 4) is None
    assert latest_checkpoint(ERL, []) is None
    last = latest_checkpoint(RLVR, THREE)
    assert last is not None
    assert last.artifact_id == "first update_policy 3"


@pytest.mark.parametrize(
    "settings",
    [
        "method=erl",
        "distillation=off",
        "distillation=joint",
        "replay=on",
        "method=complementary",
        "method={type: complementary, experience: weights}",
        "policy={type: pretrained, model: some, lora: {rank: 4, alpha: 8}}",
    ],
)
def test_the_stages_that_make_the_policy_are_those_of_the_whole_plan(settings: str) -> None:
    made = plan(settings)
    first, last = (made.by_id[state.models[POLICY]].stage.name for state in made.states[:2])
    assert policy_makers(config(settings)) == (first, last)


def test_the_last_line_of_a_place_counts() -> None:
    again = [line(1, "fine_tune", "first"), line(1, "fine_tune", "second")]
    assert recorded_ids(again) == {StageKey(1, "fine_tune", ""): "second fine_tune 1"}


def lacking(*places: StageKey) -> dict[StageKey, str]:
    """The ledger of the small run without these entries."""
    return {place: made for place, made in ids(plan()).items() if place not in places}


def test_a_run_is_whole_through_the_last_iteration_that_has_all_of_its_plan() -> None:
    assert whole_iterations(plan(), lacking()) == 3
    assert whole_iterations(plan(), lacking(StageKey(3, "rollout_shard", "0001"))) == 2
    assert whole_iterations(plan(), lacking(StageKey(1, "index_memory", ""))) == 0
    assert whole_iterations(plan(), {}) == 0


def test_nothing_follows_from_evaluations() -> None:
    assert whole_iterations(plan(), lacking(StageKey(0, "evaluate", ""), StageKey(3, "evaluate", ""))) == 3


def test_what_the_plan_would_make_otherwise_is_not_whole() -> None:
    assert whole_iterations(plan("fine_tune.steps=5"), ids(plan())) == 0
    assert whole_iterations(plan(), {**ids(plan()), StageKey(2, "update_policy", ""): "another"}) == 1


def test_a_new_request_to_forget_leaves_its_iteration_to_be_done() -> None:
    asked = plan_run(config(), SOURCES, requests={2: (ForgetRequest("request"),)})
    assert whole_iterations(asked, ids(plan())) == 1


def test_trusted_is_what_is_recorded_but_for_the_newest_whole_iteration() -> None:
    recorded = lacking(StageKey(3, "fine_tune", ""), StageKey(3, "evaluate", ""))
    trusted = trusted_places(plan(), recorded)
    assert trusted == {place for place in recorded if place.iteration != 2}
    assert trusted_places(plan(), {}) == frozenset()


def test_nothing_that_trains_is_imported() -> None:
    code = "import sys, erl_pipeline.runs.state; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_report_of_a_run_that_is_too_long_is_removed_and_not_left_behind(tmp_path: Path) -> None:
    made = write_page_store(tmp_path)
    run, page = made.runs.open("one"), tmp_path / "report.html"
    page.write_text("of an earlier iteration")
    assert renew_report(made.store, run, 2, page) == page
    assert "2 of 2 iterations" in page.read_text(encoding="utf-8")
    assert renew_report(made.store, run, REPORTED_ITERATIONS + 1, page) is None
    assert not page.exists()
    assert renew_report(made.store, run, REPORTED_ITERATIONS + 1, page) is None
