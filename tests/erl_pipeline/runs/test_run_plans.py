"""Plans of runs that do not continue another: their ids, what changes them, and the inputs of stages."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from erl_pipeline.plan.plan import StageKey
from erl_pipeline.plan.sources import CodeOwner
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.stages.evaluation.evaluate import EvaluationSettings
from erl_pipeline.stages.rollouts.generate_rollouts import RolloutSettings
from storage.artifacts.recipe import Recipe
from storage.errors import ConfigError, InputError
from storage.memory.versions import ForgetRequest
from tests.erl_pipeline.runs.planned_runs import (
    DECOUPLED,
    ITERATION,
    MERGING,
    SOURCES,
    at,
    config,
    ids,
    inputs,
    plan,
    stages,
)

LLAMA = {"policy": {"type": "pretrained", "model": "/models/llama"}}
LORA = {"policy": {**LLAMA["policy"], "lora": {"rank": 4}}}
VLLM = "engine={type: vllm}"


def test_the_stages_of_a_run() -> None:
    made = plan()
    assert made.iterations == 3
    assert stages(made, 0) == ["prepare_tasks", "bootstrap", "evaluate"]
    assert stages(made, 1) == ITERATION
    assert stages(made, 2) == [*ITERATION, "evaluate"]  # every second iteration
    assert stages(made, 3) == [*ITERATION, "evaluate"]  # the last one


def test_stages_of_ablations_and_of_the_baseline() -> None:
    def second(*settings: str) -> list[str]:
        return [name.partition(" ")[0] for name in stages(plan(*settings), 2)[2:]]

    assert second("method.memory=off") == [
        "generate_rollouts",
        "update_policy",
        "build_distillation",
        "fine_tune",
        "evaluate",
    ]
    assert second("distillation=off") == [
        "generate_rollouts",
        "index_memory",
        "update_policy",
        "evaluate",
    ]
    assert second("method=rlvr") == ["generate_rollouts", "update_policy", "evaluate"]
    assert second("distillation=joint") == [
        "generate_rollouts",
        "index_memory",
        "build_distillation",
        "update_policy",
        "evaluate",
    ]


def test_what_goes_into_what() -> None:
    made = plan()
    first = "bootstrap"
    assert inputs(made, 1, "rollout_shard", "0001") == {"checkpoint": first, "tasks": "prepare_tasks"}
    assert inputs(made, 2, "rollout_shard", "0000") == {
        "checkpoint": "fine_tune of iteration 1",
        "tasks": "prepare_tasks",
        "memory": "index_memory of iteration 1",
    }
    assert inputs(made, 2, "generate_rollouts") == {
        "shard-0000": "rollout_shard 0000 of iteration 2",
        "shard-0001": "rollout_shard 0001 of iteration 2",
    }
    assert inputs(made, 2, "index_memory") == {
        "rollouts": "generate_rollouts of iteration 2",
        "memory": "index_memory of iteration 1",
    }
    assert inputs(made, 2, "update_policy") == {
        "checkpoint": "fine_tune of iteration 1",
        "rollouts": "generate_rollouts of iteration 2",
    }
    assert inputs(made, 2, "fine_tune") == {
        "checkpoint": "update_policy of iteration 2",
        "dataset": "build_distillation of iteration 2",
    }
    assert inputs(made, 2, "evaluate") == {
        "checkpoint": "fine_tune of iteration 2",
        "tasks": "prepare_tasks",
    }


WINDOW = "distillation.window=2"


@pytest.mark.parametrize("method", [("method=erl",), ("method=rlvr", "distillation=on")])
def test_a_window_trains_on_the_datasets_of_the_last_iterations(method: tuple[str, ...]) -> None:
    made = plan(*method, WINDOW, "iterations=4")
    tuned = [inputs(made, iteration, "fine_tune") for iteration in (1, 2, 3)]
    assert [{name: title for name, title in each.items() if name != "checkpoint"} for each in tuned] == [
        {"dataset": "build_distillation of iteration 1"},
        {
            "dataset": "build_distillation of iteration 2",
            "dataset-0001": "build_distillation of iteration 1",
        },
        {
            "dataset": "build_distillation of iteration 3",
            "dataset-0001": "build_distillation of iteration 2",
        },
    ]
    joint = inputs(plan(*method, WINDOW, "distillation.form=joint"), 2, "update_policy")
    assert {name: joint[name] for name in ("dataset", "dataset-0001")} == {
        "dataset": "build_distillation of iteration 2",
        "dataset-0001": "build_distillation of iteration 1",
    }
    # A dataset has only the rows of its own iteration, so no row occurs twice in a window.
    assert inputs(made, 3, "build_distillation") == {"rollouts": "generate_rollouts of iteration 3"}


def test_a_window_goes_on_over_the_end_of_a_shorter_run() -> None:
    assert ids(plan(WINDOW, "iterations=2", "evaluation.every=1")).items() <= (
        ids(plan(WINDOW, "iterations=5", "evaluation.every=1")).items()
    )


def test_a_run_as_it_was_made_has_the_recorded_datasets_in_its_window() -> None:
    recorded = {node.place: f"{node.title} as it was" for node in plan(WINDOW).nodes}
    made = plan_run(config(WINDOW), SOURCES, recorded=recorded)
    assert at(made, 3, "fine_tune").recipe.inputs["dataset-0001"] == (
        "build_distillation of iteration 2 as it was"
    )


def test_whole_episodes_are_evaluated_with_the_memory_of_their_iteration() -> None:
    made = plan("evaluation.whole_episodes=true")
    assert "memory" not in inputs(made, 0, "evaluate")
    assert inputs(made, 2, "evaluate")["memory"] == "index_memory of iteration 2"
    without = plan("evaluation.whole_episodes=true", "method.memory=off")
    assert "memory" not in inputs(without, 2, "evaluate")


def test_an_evaluation_with_memory_withholds_it_from_no_episode() -> None:
    evaluated = at(plan("evaluation.whole_episodes=true", "method.memory.withhold=0.25"), 2, "evaluate")
    assert isinstance(evaluated.settings, EvaluationSettings)
    assert evaluated.settings.play.retrieval is not None
    assert evaluated.settings.play.retrieval.withhold == 0.0
    played = at(plan("method.memory.withhold=0.25"), 2, "rollout_shard", "0000")
    assert isinstance(played.settings, RolloutSettings)
    assert played.settings.play.retrieval is not None
    assert played.settings.play.retrieval.withhold == 0.25


def test_groups_that_are_too_small_for_subgroups_are_refused() -> None:
    refused = ("objective.advantages_per=subgroup", "rollouts.group_size=2")
    with pytest.raises((ConfigError, ValidationError), match="group_size: 2; with the method's withhold"):
        config(*refused)
    assert config(*refused, "method.memory.withhold=0").rollouts.group_size == 2
    assert config(*refused, "method.memory=off").rollouts.group_size == 2


def test_the_kl_term_refers_to_the_first_checkpoint() -> None:
    made = plan("objective.kl_coefficient=0.1", "objective.kl_estimator=k3")
    assert inputs(made, 3, "update_policy")["reference"] == "bootstrap"


def test_an_adapter_has_its_base_beside_it() -> None:
    made = plan(**LORA)
    for stage in ("update_policy", "fine_tune", "evaluate"):
        assert inputs(made, 2, stage)["base"] == "bootstrap"
    assert inputs(made, 2, "rollout_shard", "0000")["base"] == "bootstrap"
    assert "base" not in inputs(plan(**LLAMA), 2, "update_policy")


def test_the_same_configuration_gives_the_same_ids() -> None:
    assert ids(plan()) == ids(plan())


def test_a_longer_run_begins_as_a_shorter_one() -> None:
    short, long = ids(plan("iterations=2")), ids(plan("iterations=5"))
    assert short.items() <= long.items()
    assert len(set(long.values())) == len(long)


STAGES = frozenset(name.partition(" ")[0] for name in ITERATION)
LEARNING = frozenset({"update_policy", "fine_tune"})
CHANGED: Mapping[str, tuple[Set[str], Set[str]]] = {
    "seed=1": ({"prepare_tasks", "evaluate"}, STAGES),
    "evaluation.tasks=8": ({"prepare_tasks", "evaluate"}, STAGES),
    "environment.rows=[3, 3]": ({"prepare_tasks", "bootstrap", "evaluate"}, STAGES),
    "policy.layers=2": ({"bootstrap", "evaluate"}, STAGES),
    "sampling.temperature=0.5": ({"evaluate"}, STAGES),
    "method.sampling.reflection.max_new_tokens=4": (set(), STAGES),
    "method.sampling.first_attempt.max_new_tokens=4": ({"evaluate"}, STAGES),
    "evaluation.samples_per_task=3": ({"evaluate"}, set()),
    "method.memory.top_k=2": (set(), STAGES),
    "method.memory.withhold=0.25": (set(), STAGES),
    "method.memory.credit_weight=0.5": (set(), STAGES),
    "objective.advantages_per=group": (set(), LEARNING),
    "rollouts.group_size=4": (set(), STAGES),
    "method.memory.max_entries=5": (set(), {"index_memory"}),
    "objective.clip_low=0.1": (set(), LEARNING),
    "optimizer.learning_rate=0.5": (set(), LEARNING),
    "update.epochs=2": (set(), LEARNING),
    "distillation.max_rows_per_task=1": (set(), {"build_distillation", "fine_tune"}),
    "distillation.reward_above=0": (set(), {"build_distillation", "fine_tune"}),
    "distillation.weight=reward": (set(), {"build_distillation", "fine_tune"}),
    "distillation.chain=on": (set(), {"build_distillation", "fine_tune"}),
    "optimizer.moments=by_use": (set(), LEARNING),
    "fine_tune.steps=5": (set(), {"fine_tune"}),
    "fine_tune.learning_rate=0.5": (set(), {"fine_tune"}),
}
"""Setting -> the stages before and in the first iteration whose artifacts it changes."""


@pytest.mark.parametrize("setting", CHANGED)
def test_a_setting_changes_what_reads_it_and_what_follows_from_that(setting: str) -> None:
    before, after = ids(plan()), ids(plan(setting))
    changed = [place for place, made in before.items() if after[place] != made]

    def changed_in(iteration: int) -> Set[str]:
        return {place.stage for place in changed if place.iteration == iteration}

    assert (changed_in(0), changed_in(1)) == CHANGED[setting]
    # From the second iteration on everything depends on the results of the first.
    assert changed_in(2) == changed_in(3) == ({"evaluate"} | STAGES if CHANGED[setting][1] else {"evaluate"})


@pytest.mark.parametrize(
    "setting",
    [
        "resources.threads=3",
        "resources.devices=2",
        "runner={type: in_process}",
        "runner={type: prefect, task_runner: processes, workers: 2}",
        "metrics=[]",
        "name=other",
    ],
)
def test_what_decides_no_result_changes_no_id(setting: str) -> None:
    assert ids(plan(setting)) == ids(plan())


@pytest.mark.parametrize(
    "setting", ["engine.servers=[{url: http://localhost:8000}]", "engine.startup_seconds=9"]
)
def test_how_a_server_is_run_changes_no_id(setting: str) -> None:
    assert ids(plan(VLLM, setting)) == ids(plan(VLLM))
    assert ids(plan(VLLM)) != ids(plan())


def test_how_often_it_is_evaluated_changes_no_other_id() -> None:
    often, seldom = ids(plan("evaluation.every=1")), ids(plan("evaluation.every=3"))
    assert seldom.items() <= often.items()
    assert {place.stage for place in often.keys() - seldom.keys()} == {"evaluate"}


@pytest.mark.parametrize(
    ("owner", "first"),
    [
        ("environment", (0, "prepare_tasks")),
        ("method", (0, "evaluate")),
        ("trainer", (1, "update_policy")),
    ],
)
def test_edited_code_changes_ids_from_the_first_stage_that_runs_it(owner: CodeOwner, first: object) -> None:
    sources = replace(SOURCES, code={**SOURCES.code, owner: {"package": "2"}})
    made = plan_run(config(), sources)
    changed = [node.place for node in made.nodes if ids(plan())[node.place] != node.artifact_id]
    assert (changed[0].iteration, changed[0].stage) == first


def test_other_weights_are_another_model() -> None:
    one = plan_run(config(**LLAMA), SOURCES)
    other = plan_run(config(**LLAMA), replace(SOURCES, weights="v" * 64))
    assert at(one, 0, "bootstrap").artifact_id != at(other, 0, "bootstrap").artifact_id
    moved = {"policy": {**LLAMA["policy"], "model": "/elsewhere/llama"}}
    assert ids(plan_run(config(**moved), SOURCES)) == ids(one)


@pytest.mark.parametrize(
    ("lag", "sampled_from"),
    [
        (0, ["bootstrap", "fine_tune of iteration 1", "fine_tune of iteration 2"]),
        (1, ["bootstrap", "bootstrap", "fine_tune of iteration 1"]),
        (2, ["bootstrap", "bootstrap", "bootstrap"]),
    ],
)
def test_with_a_lag_rollouts_are_sampled_from_an_older_checkpoint(lag: int, sampled_from: list[str]) -> None:
    made = plan(DECOUPLED, f"pipeline.lag={lag}")
    shards = [inputs(made, iteration, "rollout_shard", "0000") for iteration in (1, 2, 3)]
    assert [shard["checkpoint"] for shard in shards] == sampled_from
    # Memory and training do not lag.
    assert shards[2]["memory"] == "index_memory of iteration 2"
    assert inputs(made, 3, "update_policy")["checkpoint"] == "fine_tune of iteration 2"


def test_a_lag_without_importance_correction_is_refused() -> None:
    with pytest.raises((ConfigError, ValidationError), match=r"pipeline\.lag: 1; allowed with"):
        config("pipeline.lag=1")


def test_requests_to_forget_come_after_the_memory_of_their_iteration() -> None:
    requests = {2: (ForgetRequest("request-a"), ForgetRequest("request-b"))}
    made = plan_run(config(), SOURCES, requests=requests)
    assert stages(made, 2)[3:6] == ["index_memory", "forget_memory 0000", "forget_memory 0001"]
    second = at(made, 2, "forget_memory", "0001")
    assert second.recipe.inputs == {
        "memory": at(made, 2, "forget_memory", "0000").artifact_id,
        "request": "request-b",
    }
    assert inputs(made, 3, "rollout_shard", "0000")["memory"] == "forget_memory 0001 of iteration 2"
    assert inputs(made, 3, "index_memory")["memory"] == "forget_memory 0001 of iteration 2"
    kept = {place: made_id for place, made_id in ids(made).items() if place.iteration < 2}
    assert kept.items() <= ids(plan()).items()


def test_requests_to_forget_come_after_a_merge_that_was_made_before_them() -> None:
    without = plan_run(config(**MERGING), SOURCES)
    made = plan_run(config(**MERGING), SOURCES, requests={2: (ForgetRequest("request"),)})
    assert at(made, 2, "merge_experience").artifact_id == at(without, 2, "merge_experience").artifact_id
    assert inputs(made, 2, "forget_memory", "0000") == {
        "memory": "merge_experience of iteration 2",
        "request": "request",
    }
    for stage, key in (("rollout_shard", "0000"), ("index_memory", ""), ("credit_experience", "")):
        assert inputs(made, 3, stage, key)["memory"] == "forget_memory 0000 of iteration 2"
    # What the extractor wrote in the merge is found by what it is trained on.
    assert inputs(made, 3, "credit_experience")["merged"] == "merge_experience of iteration 2"
    assert at(made, 2, "evaluate_with_experience") == at(without, 2, "evaluate_with_experience")


def test_a_merge_does_not_read_what_was_to_be_forgotten_before_it() -> None:
    made = plan_run(
        config(**MERGING),
        SOURCES,
        requests={
            2: (
                ForgetRequest("early", frozenset({"index_memory"})),
                ForgetRequest("late", frozenset({"merge_experience"})),
            )
        },
    )
    assert inputs(made, 2, "forget_memory", "0000") == {
        "memory": "index_memory of iteration 2",
        "request": "early",
    }
    assert inputs(made, 2, "merge_experience")["memory"] == "forget_memory 0000 of iteration 2"
    assert inputs(made, 2, "forget_memory", "0001") == {
        "memory": "merge_experience of iteration 2",
        "request": "late",
    }
    assert inputs(made, 3, "index_memory")["memory"] == "forget_memory 0001 of iteration 2"


@pytest.mark.parametrize(
    ("stage", "settings"),
    [
        ("evaluate_with_experience", MERGING),
        ("evaluate", {"evaluation": {"every": 2, "whole_episodes": True}}),
    ],
)
def test_an_evaluation_reads_the_memory_without_what_was_forgotten_before_it(
    stage: str, settings: Mapping[str, Any]
) -> None:
    made = plan_run(
        config(**settings),
        SOURCES,
        requests={
            2: (
                ForgetRequest("before", frozenset({"index_memory", "merge_experience"})),
                ForgetRequest("after", frozenset({"index_memory", "merge_experience", stage})),
            )
        },
    )
    assert inputs(made, 2, stage)["memory"] == "forget_memory 0000 of iteration 2"
    assert inputs(made, 3, stage)["memory"] == "index_memory of iteration 3"
    assert inputs(made, 3, "rollout_shard", "0000")["memory"] == "forget_memory 0001 of iteration 2"


RECORDED = {node.place: f"{node.title} as it was" for node in plan().nodes}


def test_a_run_as_it_was_made_has_the_recorded_ids() -> None:
    made = plan_run(config("seed=5"), SOURCES, recorded=RECORDED)
    assert ids(made) == RECORDED
    shard = at(made, 2, "rollout_shard", "0000")
    assert shard.recipe.inputs["checkpoint"] == "fine_tune of iteration 1 as it was"


def test_a_run_as_it_was_made_is_evaluated_where_it_was() -> None:
    """When it was last evaluated, and how often, depends on where it was stopped."""
    others = {place: made for place, made in RECORDED.items() if place != StageKey(2, "evaluate", "")}
    made = plan_run(config("iterations=2"), SOURCES, recorded=others)
    assert made.iterations == 2
    assert "evaluate" not in stages(made, 2)
    assert "evaluate" in stages(plan_run(config("evaluation.every=9"), SOURCES, recorded=RECORDED), 2)


def test_a_run_that_lacks_a_stage_cannot_be_planned_as_it_was_made() -> None:
    lacking = {place: made for place, made in RECORDED.items() if place.stage != "fine_tune"}
    with pytest.raises(InputError, match="the run has no fine_tune in iteration 1"):
        plan_run(config(), SOURCES, recorded=lacking)


def test_what_is_not_recorded_of_a_part_has_the_id_of_its_recipe() -> None:
    began = {place: made for place, made in RECORDED.items() if place.iteration < 3}
    made = plan_run(config(), SOURCES, recorded=began, partial=True)
    update = at(made, 3, "update_policy")
    assert update.recipe.inputs["checkpoint"] == "fine_tune of iteration 2 as it was"
    assert isinstance(update.recipe, Recipe)
    assert update.artifact_id == update.recipe.artifact_id


def test_a_plan_is_cut_after_an_iteration() -> None:
    assert ids(plan("evaluation.every=1").through(2)) == ids(plan("iterations=2", "evaluation.every=1"))
    assert plan().through(2).iterations == 2


def test_an_evaluation_of_first_attempts_does_not_depend_on_what_follows_them() -> None:
    """Its greedy first attempts are the same whatever a reflection is asked."""

    def evaluation(*settings: str) -> str:
        return at(plan(*settings), 0, "evaluate").artifact_id

    whole = "evaluation.whole_episodes=true"
    for changed in (
        "method.prompts.reflection='Think. {{ feedback }}'",
        "method.max_revisions=2",
        "method.sampling.reflection.temperature=0.5",
    ):
        assert evaluation(changed) == evaluation(), changed
        assert evaluation(whole, changed) != evaluation(whole), changed
    assert evaluation("method.sampling.first_attempt.max_new_tokens=3") != evaluation()
