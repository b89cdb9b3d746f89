"""The planned inputs of a selection of tasks."""

from __future__ import annotations

import pytest

from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.plan import Plan
from erl_pipeline.runs.run_plans import plan_branch
from storage.errors import ConfigError
from storage.runs.documents import BranchOrigin
from tests.erl_pipeline.runs.planned_runs import (
    DECOUPLED,
    SMALL,
    SOURCES,
    at,
    config,
    ids,
    inputs,
    plan,
    stages,
)

BY_DIFFICULTY = "rollouts.selection=by_difficulty"


def reads(made: Plan, iteration: int) -> dict[str, str]:
    return inputs(made, iteration, "select_tasks")


def test_uniform_plans_no_stage_and_is_in_no_recipe() -> None:
    made = plan()
    assert ids(made) == ids(plan("rollouts.selection=uniform"))
    assert "select_tasks" not in stages(made, 2)
    assert set(at(made, 2, "rollout_shard", "0000").recipe.settings["rollouts"]) == {
        "failed",
        "retries",
        "tasks_per_iteration",
        "group_size",
        "success_threshold",
        "step_seconds",
        "tasks_per_shard",
    }


def test_a_selection_reads_the_newest_rollouts_and_the_selection_before_it() -> None:
    made = plan(BY_DIFFICULTY)
    assert stages(made, 3)[0] == "select_tasks"
    assert reads(made, 1) == {"tasks": "prepare_tasks"}
    assert reads(made, 3) == {
        "tasks": "prepare_tasks",
        "before": "select_tasks of iteration 2",
        "rollouts-000002": "generate_rollouts of iteration 2",
    }
    for shard in ("0000", "0001"):
        assert inputs(made, 3, "rollout_shard", shard)["samples"] == "select_tasks of iteration 3"


def test_with_a_lag_it_reads_what_made_the_checkpoint_that_acts() -> None:
    made = plan(BY_DIFFICULTY, "pipeline.lag=1", "iterations=4", DECOUPLED)
    assert reads(made, 2) == {"tasks": "prepare_tasks", "before": "select_tasks of iteration 1"}
    assert reads(made, 4)["rollouts-000002"] == "generate_rollouts of iteration 2"
    assert len(reads(made, 4)) == 3


def test_a_branch_that_begins_to_select_reads_all_rollouts_once() -> None:
    branch = plan_branch(
        config(BY_DIFFICULTY),
        SOURCES,
        plan(),
        config(),
        BranchOrigin(run="small", iteration=3, stage="generate_rollouts"),
        iterations=4,
    )
    assert sorted(reads(branch, 3)) == ["rollouts-000001", "rollouts-000002", "tasks"]
    assert sorted(reads(branch, 4)) == ["before", "rollouts-000003", "tasks"]


@pytest.mark.parametrize(
    ("before", "read"),
    [
        # It has read no results: so all are read now.
        (["rollouts.selection=easy_to_hard"], ["000001", "000002", "000003", "000004"]),
        # It has read those of iterations 1 and 2 before iteration 5 of the run, where the branch begins.
        ([BY_DIFFICULTY, "pipeline.lag=1"], ["000003", "000004"]),
    ],
)
def test_a_branch_to_another_selection_reads_what_none_has_read(before: list[str], read: list[str]) -> None:
    source = config(*before, "iterations=5", DECOUPLED)
    branch = plan_branch(
        config(BY_DIFFICULTY, "iterations=5", DECOUPLED),
        SOURCES,
        plan(*before, "iterations=5", DECOUPLED),
        source,
        BranchOrigin(run="small", iteration=5, stage="select_tasks"),
        iterations=5,
    )
    assert sorted(reads(branch, 5)) == ["before", *(f"rollouts-{each}" for each in read), "tasks"]


def test_from_easy_to_hard_by_the_environment_no_results_are_read() -> None:
    made = plan("rollouts.selection=easy_to_hard")
    assert reads(made, 3) == {"tasks": "prepare_tasks"}
    assert at(made, 3, "select_tasks").recipe.settings["environment"]["type"] == "frozen_lake"
    by_results = plan("rollouts.selection={type: easy_to_hard, by: results}")
    assert set(reads(by_results, 3)) == {"tasks", "before", "rollouts-000002"}


def test_what_replays_draws_its_tasks_itself() -> None:
    with pytest.raises(ConfigError, match=r"rollouts.selection.type: by_difficulty; with replay"):
        config(BY_DIFFICULTY, replay=True)
    off = plan(BY_DIFFICULTY, replay=False)
    assert stages(off, 2)[0] == "select_tasks"


def test_an_environment_that_cannot_tell_difficulty_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from erl_pipeline.config.plugins import plugins

    plugin = plugins("environments")["frozen_lake"]
    mute = replace(plugin, value=replace(plugin.value, splits=replace(plugin.value.splits, difficulty=None)))
    monkeypatch.setitem(plugins("environments").found, "frozen_lake", mute)
    with pytest.raises(ConfigError, match=r"selection.by: environment; environment frozen_lake cannot say"):
        config("rollouts.selection=easy_to_hard")
    assert RunConfig.model_validate(
        {**SMALL, "rollouts": {"selection": {"type": "easy_to_hard", "by": "results"}}}
    )
