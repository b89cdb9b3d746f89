"""Plans of runs with small configurations, made without a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from erl_pipeline.config.loading import change_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.plan import Plan, PlannedStage, StageKey
from erl_pipeline.plan.sources import NO_CODE, Sources
from erl_pipeline.runs.run_plans import plan_run

SMALL: Mapping[str, Any] = {
    "name": "small",
    "iterations": 3,
    "environment": {"type": "frozen_lake"},
    "policy": {"type": "tiny"},
    "rollouts": {"tasks_per_iteration": 4, "tasks_per_shard": 2},
    "evaluation": {"every": 2},
}
SOURCES = Sources(code={**NO_CODE, "environment": {"lake": "1"}, "method": {"erl": "1"}}, weights="w" * 64)
DECOUPLED = "objective.correction={type: decoupled}"
MERGING: Mapping[str, Any] = {
    "method": {"type": "complementary", "experience": {"warmup_iterations": 1, "merge_every": 2}}
}
"""Settings with which a second model merges the memory in every second iteration."""
ITERATION = [
    "rollout_shard 0000",
    "rollout_shard 0001",
    "generate_rollouts",
    "index_memory",
    "update_policy",
    "build_distillation",
    "fine_tune",
]
"""Stages of an iteration of these runs that does not evaluate."""


def config(*settings: str, **changes: Any) -> RunConfig:
    """The configuration of a small run, with settings changed as by `--set`."""
    return change_config(RunConfig.model_validate({**SMALL, **changes}), settings)


def plan(*settings: str, **changes: Any) -> Plan:
    return plan_run(config(*settings, **changes), SOURCES)


def ids(made: Plan) -> dict[StageKey, str]:
    return {node.place: node.artifact_id for node in made.nodes}


def at(made: Plan, iteration: int, stage: str, key: str = "") -> PlannedStage:
    return made.by_place[StageKey(iteration, stage, key)]


def inputs(made: Plan, iteration: int, stage: str, key: str = "") -> dict[str, str]:
    """The inputs of a stage: titles of the stages that make them, or ids of artifacts from elsewhere."""
    recipe = at(made, iteration, stage, key).recipe
    return {
        name: made.by_id[artifact_id].title if artifact_id in made.by_id else artifact_id
        for name, artifact_id in recipe.inputs.items()
    }


def stages(made: Plan, iteration: int) -> Sequence[str]:
    return [node.title.removesuffix(f" of iteration {iteration}") for node in made.of_iteration(iteration)]
