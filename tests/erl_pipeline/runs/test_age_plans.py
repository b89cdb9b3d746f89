"""Limits on the age of trajectories: what they change in a plan, and what cannot be combined with them."""

from __future__ import annotations

import pytest

from erl_pipeline.runs.origins import require_offline
from storage.errors import ConfigError
from tests.erl_pipeline.runs.planned_runs import DECOUPLED, at, config, ids, plan

WAIT_1 = "pipeline.max_age=1"
DROP_1 = "pipeline={max_age: 1, too_old: drop}"

REPLAYING = ("method=rlvr", "replay=on")


@pytest.mark.parametrize("method", ["erl", "rlvr", "complementary"])
def test_without_a_limit_no_recipe_knows_of_one(method: str) -> None:
    replay = "off" if method == "complementary" else "on"
    made = plan(f"method={method}", f"replay={replay}").nodes
    updates = [node for node in made if node.stage.output == "checkpoint" and node.iteration]
    assert updates
    assert all("max_age" not in node.recipe.settings for node in updates)
    assert all("too_old" not in str(node.recipe.settings) for node in made)


def test_waiting_is_the_plan_and_changes_no_artifact() -> None:
    assert ids(plan(WAIT_1)) == ids(plan())
    lagging = (DECOUPLED, "pipeline.lag=1")
    assert ids(plan(*lagging, WAIT_1)) == ids(plan(*lagging))
    replaying = (*REPLAYING, "replay.max_age=1")
    assert ids(plan(*replaying, WAIT_1)) == ids(plan(*replaying))


def test_dropping_is_a_setting_of_the_update() -> None:
    made, before = plan(*REPLAYING, DROP_1), plan(*REPLAYING)
    assert at(made, 1, "update_policy").recipe.settings["max_age"] == 1
    changed = {
        place.stage for place in ids(made) if place.iteration == 1 and ids(made)[place] != ids(before)[place]
    }
    assert changed == {"update_policy"}
    assert at(made, 2, "update_policy").recipe.settings["replay"] is not None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            [DECOUPLED, "pipeline.lag=2", WAIT_1],
            r"pipeline.*lag: 2; allowed with max_age: 1 is at most 1, since no fresh trajectory would be "
            r"young enough from iteration 3 on; lower pipeline\.lag, or raise pipeline\.max_age",
        ),
        ([DECOUPLED, "pipeline={lag: 1, max_age: 0, too_old: drop}"], "lag: 1; allowed with max_age: 0 is"),
        (["pipeline.too_old=drop"], "too_old: drop; it needs max_age"),
        (
            ["replay=on", WAIT_1],
            r"replay\.max_age: null; allowed with pipeline\.max_age: 1, pipeline\.lag: 0 and "
            r"pipeline\.too_old: wait is 1 to 1",
        ),
        (
            ["replay=on", DECOUPLED, "replay.max_age=2", "pipeline={lag: 1, max_age: 2}"],
            r"replay\.max_age: 2; allowed with pipeline\.max_age: 2, pipeline\.lag: 1 .* is 1 to 1",
        ),
        (
            ["replay=on", "replay.max_age=1", "pipeline.max_age=0"],
            r"pipeline\.lag: 0 and pipeline\.too_old: wait is replay: off",
        ),
        (
            ["method={type: complementary, experience: weights}", DROP_1],
            r"pipeline\.max_age: 1; allowed with method\.experience\.type: weights is null",
        ),
    ],
)  # fmt: skip
def test_limits_that_cannot_be_kept_are_refused_and_both_settings_named(
    settings: list[str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        config(*settings)


def test_replay_within_the_limit_is_allowed() -> None:
    """With a lag of 1, attempts that were stored one iteration ago were sampled by a policy one iteration
    older."""
    allowed = config(*REPLAYING, DECOUPLED, "replay.max_age=1", "pipeline={lag: 1, max_age: 2}")
    assert allowed.pipeline.max_age == 2


def test_stored_rollouts_are_not_waited_for() -> None:
    require_offline(config(DECOUPLED, DROP_1))
    with pytest.raises(
        ConfigError, match=r"pipeline\.too_old: wait; allowed offline with .*max_age: 1 is drop"
    ):
        require_offline(config(DECOUPLED, WAIT_1))
