"""Adding stages to a plan by hand."""

from __future__ import annotations

from typing import Any

import pytest

from erl_pipeline.config.base import Settings
from erl_pipeline.plan.planner import Planner
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from storage.errors import ConfigError
from storage.memory.versions import ForgetRequest
from tests.erl_pipeline.runs.planned_runs import SOURCES, config


class Steps(Settings):
    """The number of steps."""

    steps: int = 1


def _nothing(_call: StageCall[Steps]) -> StageResult:
    raise AssertionError("a plan computes nothing")


COUNT = Stage(name="count", version=1, output="table", settings=Steps, compute=_nothing)
SEVEN = Stage(
    name="seven",
    version=1,
    output="table",
    settings=Steps,
    compute=_nothing,
    slice=lambda config, _sources: Steps(steps=config.iterations + 4),
)


def planner(**given: Any) -> Planner:
    return Planner(config(), SOURCES, **given)


def test_a_stage_takes_its_settings_from_the_configuration_or_is_given_them() -> None:
    plan = planner()
    plan.add(SEVEN, {}, iteration=None)
    plan.add(COUNT, {}, iteration=None, settings=Steps(steps=2))
    assert [dict(node.recipe.settings) for node in plan.nodes] == [{"steps": 7}, {"steps": 2}]


def test_settings_that_nobody_gives_are_refused() -> None:
    with pytest.raises(ConfigError, match="stage count takes no settings from a configuration by itself"):
        planner().add(COUNT, {}, iteration=None)


@pytest.mark.parametrize(("given", "named"), [("0" * 32, "0" * 32), ("", "none")])
def test_an_input_that_no_stage_makes_is_refused(given: str, named: str) -> None:
    with pytest.raises(ConfigError, match=rf"seven of iteration 4: its input data \({named}\) is made by no"):
        planner().add(SEVEN, {"data": given}, iteration=4)


def test_a_circle_is_refused_naming_the_stage() -> None:
    """The first stage of a circle has an input that comes after it."""
    later = planner()
    one = later.add(SEVEN, {}, iteration=1)
    two = later.add(SEVEN, {"before": one}, iteration=2)
    with pytest.raises(ConfigError, match="seven of iteration 1: its input before"):
        planner().add(SEVEN, {"before": two}, iteration=1)


def test_what_is_in_the_store_already_may_be_an_input() -> None:
    plan = planner(external=frozenset({"rollouts"}), requests={3: (ForgetRequest("request"),)})
    plan.add(SEVEN, {"data": "rollouts", "request": "request"}, iteration=1)
    assert len(plan.nodes) == 1


def test_index_seed_and_version_tell_artifacts_apart() -> None:
    plan = planner()
    made = [
        plan.add(SEVEN, {}, iteration=1),
        plan.add(SEVEN, {}, iteration=1, seed=1, key="a"),
        plan.add(SEVEN, {}, iteration=1, index={"shard": 1}, key="b"),
        plan.add(SEVEN, {}, iteration=1, settings=Steps(steps=8), key="c"),
        plan.add(
            Stage(
                name="seven", version=2, output="table", settings=Steps, compute=_nothing, slice=SEVEN.slice
            ),
            {},
            iteration=1,
            key="d",
        ),
    ]
    assert len(set(made)) == 5


def test_iteration_and_key_say_only_where_an_artifact_stands() -> None:
    plan = planner()
    assert plan.add(SEVEN, {}, iteration=1) == plan.add(SEVEN, {}, iteration=2, key="a")


def test_equal_settings_are_one_object() -> None:
    plan = planner()
    assert plan.shared(Steps(steps=3)) is plan.shared(Steps(steps=3))
    assert plan.shared(Steps(steps=3)) is not plan.shared(Steps(steps=4))
