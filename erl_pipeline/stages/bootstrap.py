"""The stage that makes the first checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch

from erl_pipeline.config.policy import PretrainedPolicyConfig
from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.outcome import StageOutcome
from erl_pipeline.pipeline.stage import Work, run_stage
from erl_pipeline.policies.checkpoints import MODEL as MODEL
from erl_pipeline.policies.hardware import training_device
from erl_pipeline.policies.pretrained import load_policy, save_policy, weights_digest
from erl_pipeline.policies.tiny.cold_start import cold_start
from erl_pipeline.stages.guarantees import training_guarantee
from storage.artifacts.recipe import Recipe


def bootstrap(context: RunContext) -> StageOutcome:
    """Commit the policy that the run begins with.

    A tiny policy is trained on scripted demonstrations over a family of worlds; its recipe names
    neither the run's seed nor its hidden world, so all runs of a store share it. A pretrained policy
    is copied in, so that the run does not depend on a folder that may change.
    """
    policy = context.config.policy
    if isinstance(policy, PretrainedPolicyConfig):
        return _import_pretrained(context, policy)
    environment = context.config.environment
    recipe = Recipe(
        stage="bootstrap",
        stage_version=1,
        kind="checkpoint",
        settings={
            "policy": policy.model_dump(mode="json"),
            "environment": environment.model_dump(mode="json", exclude=set(ENVIRONMENT.tiny_exclude)),
        },
        inputs={},
        seed=0,
    )

    def train(folder: Path) -> Work:
        metrics = cold_start(
            policy,
            ENVIRONMENT.require_tiny(environment),
            seed=0,
            output_dir=folder / MODEL,
            on_step=context.count_steps("bootstrap"),
        )
        return Work(metrics=metrics, guarantee=training_guarantee(training_device()))

    torch.set_num_threads(context.config.threads)
    return run_stage(context, recipe, None, train, policy.cold_start.steps, "steps")


def _import_pretrained(context: RunContext, policy: PretrainedPolicyConfig) -> StageOutcome:
    recipe = Recipe(
        stage="bootstrap",
        stage_version=1,
        kind="checkpoint",
        # Whether an adapter is trained changes nothing here, so that both kinds of run share the base.
        settings={
            "policy": policy.model_dump(mode="json", exclude={"lora"}),
            "weights": weights_digest(policy.model),
        },
        inputs={},
        seed=0,
    )

    def copy(folder: Path) -> Work:
        loaded = load_policy(policy.model, dtype=policy.dtype)
        save_policy(loaded, folder / MODEL)
        return Work(counters={"parameters": sum(p.numel() for p in loaded.model.parameters())})

    return run_stage(context, recipe, None, copy)
