"""Plans of runs with a second model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from erl_pipeline.config.loading import load_config
from erl_pipeline.plan.plan import Plan
from erl_pipeline.plan.sources import Sources
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.runs.state import policy_makers
from tests.erl_pipeline.runs.planned_runs import SOURCES, at, config, ids, inputs, plan, stages

ROOT = Path(__file__).parents[4]
LLAMA = {"type": "pretrained", "model": "/models/llama", "lora": {"rank": 4}}


def method(**experience: Any) -> dict[str, Any]:
    return {"type": "complementary", "experience": {"warmup_iterations": 1, "merge_every": 2, **experience}}


def complementary(**experience: Any) -> Plan:
    return plan(method=method(**experience))


def test_the_stages_of_an_iteration() -> None:
    made = complementary()
    assert stages(made, 0) == ["prepare_tasks", "bootstrap", "bootstrap_extractor", "evaluate"]
    shards = ["rollout_shard 0000", "rollout_shard 0001", "generate_rollouts"]
    experience = ["extract_experience", "index_memory", "credit_experience", "update_extractor"]
    assert stages(made, 1) == [*shards, *experience, "update_policy"]
    assert stages(made, 2) == [
        *shards,
        *experience,
        "merge_experience",
        "update_policy",
        "evaluate",
        "evaluate_with_experience",
    ]


def test_what_goes_into_what() -> None:
    made = complementary()
    assert inputs(made, 1, "extract_experience") == {
        "checkpoint": "bootstrap_extractor",
        "rollouts": "generate_rollouts of iteration 1",
    }
    assert inputs(made, 3, "rollout_shard", "0000") == {
        "checkpoint": "update_policy of iteration 2",
        "tasks": "prepare_tasks",
        "memory": "merge_experience of iteration 2",
    }
    assert inputs(made, 3, "credit_experience") == {
        "rollouts": "generate_rollouts of iteration 3",
        "calls": "extract_experience of iteration 3",
        "memory": "merge_experience of iteration 2",
        "credits": "credit_experience of iteration 2",
        "merged": "merge_experience of iteration 2",
    }
    assert inputs(made, 3, "update_extractor") == {
        "checkpoint": "update_extractor of iteration 2",
        "credits": "credit_experience of iteration 3",
    }
    assert inputs(made, 2, "merge_experience") == {
        "checkpoint": "update_extractor of iteration 2",
        "memory": "index_memory of iteration 2",
    }
    assert inputs(made, 2, "evaluate_with_experience")["memory"] == "merge_experience of iteration 2"
    assert "memory" not in inputs(made, 2, "evaluate")


def test_the_policy_is_held_while_experience_is_gathered() -> None:
    """The update stage still runs, so that every iteration ends with the same stages; its attempts have
    weight 0."""
    made = complementary()
    weights = [
        at(made, iteration, "update_policy").recipe.settings["objective"]["roles"] for iteration in (1, 2)
    ]
    assert weights[0]["first_attempt"]["weight"] == 0.0
    assert weights[1] == {}
    observing = plan(method=method(), objective={"observation_coefficient": 0.5})
    objectives = [
        at(observing, iteration, "update_policy").recipe.settings["objective"] for iteration in (1, 2)
    ]
    assert [each.get("observation_coefficient", 0.0) for each in objectives] == [0.0, 0.5]
    makers = policy_makers(config(method=method()))
    assert makers == ("bootstrap", "update_policy")


def test_controls_leave_stages_out() -> None:
    frozen = complementary(extractor={"train": False})
    assert "update_extractor" not in stages(frozen, 2)
    assert inputs(frozen, 3, "extract_experience")["checkpoint"] == "bootstrap_extractor"
    assert "merge_experience" not in stages(complementary(merge_every=None), 2)
    without = plan(method={"type": "complementary", "experience": False})
    assert stages(without, 1)[2:] == ["generate_rollouts", "update_policy"]
    assert stages(without, 0) == ["prepare_tasks", "bootstrap", "evaluate"]


def test_the_variant_with_weights_scores_and_then_updates() -> None:
    made = plan(method={"type": "complementary", "experience": "weights"})
    assert stages(made, 1)[2:] == ["generate_rollouts", "score_experience", "update_policy"]
    assert inputs(made, 2, "score_experience") == {
        "checkpoint": "update_policy of iteration 1",
        "rollouts": "generate_rollouts of iteration 2",
        "scores": "score_experience of iteration 1",
    }
    assert inputs(made, 2, "update_policy")["scores"] == "score_experience of iteration 2"


def test_a_pretrained_extractor_is_the_policys_first_checkpoint_or_one_of_its_own() -> None:
    prose = {"type": "frozen_lake", "format": "prose"}
    same = plan(method=method(), policy=LLAMA, environment=prose)
    assert stages(same, 0) == ["prepare_tasks", "bootstrap", "evaluate"]
    for stage in ("extract_experience", "update_extractor"):
        assert inputs(same, 1, stage)["checkpoint"] == inputs(same, 1, stage)["base"] == "bootstrap"
    chosen = config(method=method(extractor={"model": "/models/small"}), policy=LLAMA, environment=prose)
    sources = Sources(SOURCES.code, weights=SOURCES.weights, models={"/models/small": "s" * 64})
    own = plan_run(chosen, sources)
    assert at(own, 0, "bootstrap_extractor").recipe.settings["weights"] == "s" * 64
    assert inputs(own, 1, "extract_experience")["checkpoint"] == "bootstrap_extractor"
    assert sources.locations["s" * 64] == "/models/small"


def test_what_only_the_extractor_does_changes_no_attempt_before_it() -> None:
    one, other = ids(complementary()), ids(complementary(extractor={"clip": 0.2}))
    changed = {place for place, made in one.items() if other[place] != made}
    assert {place.stage for place in changed if place.iteration == 1} == {"update_extractor"}


def test_the_ready_configuration() -> None:
    ready = load_config(ROOT / "configs" / "complementary.yaml")
    made = plan_run(ready, SOURCES)
    assert stages(made, 5)[-4:] == [
        "merge_experience",
        "update_policy",
        "evaluate",
        "evaluate_with_experience",
    ]
