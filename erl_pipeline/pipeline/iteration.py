"""The order of the stages in one iteration."""

from __future__ import annotations

from dataclasses import dataclass

from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.outcome import StageRunner
from erl_pipeline.stages.build_distillation import build_distillation
from erl_pipeline.stages.evaluate import evaluate
from erl_pipeline.stages.fine_tune import fine_tune
from erl_pipeline.stages.index_memory import INDEX_STAGE, index_memory
from erl_pipeline.stages.rollouts import generate_rollouts, plan_shards, rollout_shard
from erl_pipeline.stages.update_policy import update_policy
from storage.memory.forgetting import FORGET_STAGE

STAGES = (
    "generate_rollouts",
    "index_memory",
    "update_policy",
    "build_distillation",
    "fine_tune",
    "evaluate",
)
"""The stages of an iteration in the order they run. Rollout shards belong to `generate_rollouts`, and what is
forgotten after an iteration to `index_memory`."""


def stage_rank(stage: str) -> int:
    """Where a stage stands in its iteration; what is done once, before the first, comes before all."""
    stage = {"rollout_shard": "generate_rollouts", FORGET_STAGE: INDEX_STAGE}.get(stage, stage)
    return STAGES.index(stage) if stage in STAGES else -1


@dataclass(frozen=True)
class IterationState:
    """What one iteration hands to the next, as artifact ids."""

    tasks_id: str
    reference_id: str
    checkpoint_id: str
    memory_id: str | None


def run_iteration(
    context: RunContext, iteration: int, state: IterationState, runner: StageRunner, last: bool
) -> IterationState:
    """Generate, remember, update, distil, fine-tune, evaluate; `last` says that the run ends here."""
    config = context.config
    shards = plan_shards(context, iteration, state.tasks_id, state.checkpoint_id, state.memory_id)
    shard_ids = [
        outcome.artifact_id for outcome in runner.map("rollout_shard", rollout_shard, context, shards)
    ]
    rollouts = runner.call(
        "generate_rollouts",
        generate_rollouts,
        context,
        iteration,
        state.checkpoint_id,
        state.memory_id,
        shard_ids,
    )
    memory_id = state.memory_id
    if config.memory is not None:
        memory_id = runner.call(
            "index_memory", index_memory, context, iteration, rollouts.artifact_id, memory_id
        ).artifact_id
    checkpoint_id = runner.call(
        "update_policy",
        update_policy,
        context,
        iteration,
        state.checkpoint_id,
        rollouts.artifact_id,
        state.reference_id,
    ).artifact_id
    if config.distillation is not None:
        dataset = runner.call(
            "build_distillation", build_distillation, context, iteration, rollouts.artifact_id
        )
        checkpoint_id = runner.call(
            "fine_tune", fine_tune, context, iteration, checkpoint_id, dataset.artifact_id
        ).artifact_id
    if last or iteration % config.evaluation.every == 0:
        runner.call("evaluate", evaluate, context, iteration, checkpoint_id, state.tasks_id)
    return IterationState(state.tasks_id, state.reference_id, checkpoint_id, memory_id)
