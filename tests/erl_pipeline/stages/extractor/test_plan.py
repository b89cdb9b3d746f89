"""An extractor beside ERL: the plan, what is credited, and what is refused."""

from __future__ import annotations

import pytest

from erl_pipeline.stages.extractor.credit import credit_rows, halves
from erl_pipeline.stages.extractor.extract import requests_of
from storage.errors import ConfigError
from tests.erl_pipeline.runs.planned_runs import at, config, ids, inputs, plan, stages
from tests.erl_pipeline.stages.extractor.rows import attempt

LESSONS = ("method.memory=off", "distillation=off", "experience.merge_every=2")


def test_lessons_take_the_place_of_remembered_reflections() -> None:
    made = plan(*LESSONS)
    assert stages(made, 0) == ["prepare_tasks", "bootstrap", "bootstrap_extractor", "evaluate"]
    shards = ["rollout_shard 0000", "rollout_shard 0001", "generate_rollouts"]
    lessons = ["extract_experience", "index_memory", "credit_experience", "update_extractor"]
    assert stages(made, 1) == [*shards, *lessons, "update_policy"]
    assert stages(made, 2) == [*shards, *lessons, "merge_experience", "update_policy", "evaluate"]
    assert inputs(made, 3, "rollout_shard", "0000") == {
        "checkpoint": "update_policy of iteration 2",
        "tasks": "prepare_tasks",
        "memory": "merge_experience of iteration 2",
    }
    assert inputs(made, 3, "extract_experience")["checkpoint"] == "update_extractor of iteration 2"


def test_how_many_see_a_lesson_is_a_setting_of_experience() -> None:
    made = plan(*LESSONS, "experience.withhold=0.25", "experience.top_k=3")
    retrieval = at(made, 1, "rollout_shard", "0000").recipe.settings["play"]["retrieval"]
    assert (retrieval["withhold"], retrieval["top_k"]) == (0.25, 3)


def test_without_an_extractor_no_recipe_knows_of_one() -> None:
    assert ids(plan()) == ids(plan("experience=off"))
    assert config().lessons is None


def test_a_lesson_is_worth_what_came_after_the_reflection_that_saw_it() -> None:
    """A reflection has the success of the attempt that it led to; first attempts see no lesson, and are what
    the extractor reads."""
    rows = [
        attempt(0),
        attempt(1, role="reflection", subgroup="guided", memory_entry_ids=("m-1",), success=True),
        attempt(2, role="reflection", subgroup="guided", memory_entry_ids=("m-1",), success=False),
        attempt(3, role="reflection", subgroup="free", success=False),
    ]
    assert [row["reward"] for row in credit_rows(rows, {"m-1": "r-1"})] == [1.0, -1.0]
    assert halves(rows) == {"success_guided": 0.5, "success_free": 0.0, "guided_minus_free": 0.5}
    assert [each.episode.trajectory_id for each in requests_of(rows, {}, "artifact")] == ["a0"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["experience=on"], "experience: on with method.memory: on would put lessons and reflections"),
        (
            ["experience=on", "method={type: erl, memory: off, reflection: off}"],
            "lessons are shown to reflections",
        ),
        (["experience=on", "method=rlvr"], "method rlvr cannot be combined with it"),
        (["experience=on", "method=complementary"], "method complementary cannot be combined with it"),
        (
            ["experience.extractor.model=some", "method.memory=off"],
            "experience.extractor.model: some; allowed with policy.type: tiny is null",
        ),
        (["experience=on", "method.memory=off", "rollouts.group_size=2"], "a subgroup can have a single"),
    ],
)
def test_where_lessons_make_no_sense_they_are_refused_with_the_reason(settings: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config(*settings)
