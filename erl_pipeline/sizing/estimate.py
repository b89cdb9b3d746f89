"""The memory that a whole configuration needs."""

from __future__ import annotations

from dataclasses import replace

from erl_pipeline.config.plugins.installed import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.sources import unread_sources
from erl_pipeline.policies.kind import policy_traits
from erl_pipeline.policies.model_size import ModelSize, read_model_size
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.sizing.parts import Part
from erl_pipeline.sizing.sampling import sampling_memory
from erl_pipeline.sizing.training import BYTES, training_memory
from erl_pipeline.stages.training.fine_tune import FineTuneSettings
from storage.errors import InputError

ASSUMED_TOKENS = 1024
"""Tokens of a sequence in flight where the configuration sets no `engine.max_context`."""


def model_size(config: RunConfig) -> ModelSize:
    """The sizes of a configuration's policy.

    Raises InputError when the policy is the tiny one, or its config.json is not on this machine.
    """
    traits = policy_traits(config.policy)
    if traits.model is None:
        raise InputError(
            f"policy.type: {config.policy.type} has no config.json; it needs almost no memory besides that "
            "of the program"
        )
    if traits.lora is None:
        return read_model_size(traits.model)
    return read_model_size(traits.model, traits.lora.rank, traits.lora.target_modules)


def training_processes(config: RunConfig) -> int | None:
    """Over how many processes the trainer spreads weights, gradients and state; None where it does not."""
    count: int | None = plugins("trainers")[config.trainer.type].value.processes(config.trainer)
    return count


def estimate_memory(config: RunConfig, size: ModelSize, sequence_tokens: int | None = None) -> list[Part]:
    """Memory of training and sampling with these settings, for a policy of these sizes.

    The program and its libraries, what a GPU's driver takes, and what an engine keeps for its own computation
    are left out.

    Args:
        sequence_tokens: tokens of a sequence in flight; default: `engine.max_context`, else 1,024.
    """
    traits = policy_traits(config.policy)
    dtype = traits.dtype
    planned = plan_run(config, unread_sources(config), iterations=1).nodes
    distils = any(isinstance(node.settings, FineTuneSettings) for node in planned)
    processes = training_processes(config)
    # Both updates hold the same weights and state; the one with more tokens at a time decides.
    passes = [config.update, *([config.fine_tune] if distils else [])]
    estimates = [
        training_memory(
            size,
            dtype,
            config.optimizer,
            each,
            # With an adapter the reference is the model without it.
            reference=config.objective.needs_reference
            and not size.adapter_parameters
            and each is config.update,
            uses=len(passes),
            processes=processes,
        )
        for each in passes
    ]
    warm_start = traits.warm_start
    if warm_start is not None:  # it trains all weights, also where an adapter is trained afterwards
        whole = replace(size, adapter_parameters=0)
        estimates.append(
            training_memory(whole, dtype, config.optimizer, warm_start, reference=False, processes=processes)
        )
    training = max(estimates, key=lambda parts: sum(part.bytes for part in parts))
    rollouts = config.rollouts
    capacity = plugins("engines")[config.engine.type].value.capacity(
        config.engine, rollouts.tasks_per_shard * rollouts.group_size
    )
    tokens = sequence_tokens or capacity.max_tokens or ASSUMED_TOKENS
    width = BYTES[capacity.dtype or dtype]
    return training + sampling_memory(size, width, capacity.sequences, tokens, capacity.weight_copies)
