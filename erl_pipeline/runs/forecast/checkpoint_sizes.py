"""Bytes of a run's checkpoints, computed from the sizes of its model: for stages that have never run."""

from __future__ import annotations

from collections.abc import Iterable

from erl_pipeline.config.optimizer import OptimizerConfig
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.disk import ArtifactSize
from erl_pipeline.plan.plan import PlannedStage
from erl_pipeline.policies.kind import policy_traits
from erl_pipeline.stages.training.training_stage import TrainingSettings
from erl_pipeline.stages.training.warm_start import WarmStartSettings
from storage.errors import InputError
from storage.upkeep.rules import Kept

_BYTES = {"float32": 4, "bfloat16": 2}
_MASTER, _MOMENTS = 4, 8


def estimate_checkpoints(config: RunConfig, nodes: Iterable[PlannedStage]) -> dict[str, ArtifactSize]:
    """The size of a checkpoint, by the name of the stage that makes it. Empty if the model's config.json is
    not on this machine. A tiny policy is counted without its vocabulary. The checkpoint of a warm start has
    all weights, and no optimizer state."""
    stages = {node.stage.name: node for node in nodes if node.stage.output == "checkpoint"}
    if not stages:
        return {}
    traits = policy_traits(config.policy)
    adapter, width = 0, _BYTES[traits.dtype]
    if traits.model is not None:
        # Importing the module that knows architectures takes seconds.
        from erl_pipeline.policies.model_size import read_model_size

        lora = traits.lora
        try:
            size = read_model_size(traits.model, *(() if lora is None else (lora.rank, lora.target_modules)))
        except InputError:
            return {}
        parameters, adapter = size.parameters, size.adapter_parameters
    elif traits.parameters is not None:
        parameters = traits.parameters
    else:
        return {}
    return {
        name: trained_size(adapter or parameters, width, node.settings.optimizer)
        if isinstance(node.settings, TrainingSettings) and not isinstance(node.settings, WarmStartSettings)
        else ArtifactSize(parameters * width, {"checkpoints": parameters * width}, estimated=True)
        for name, node in stages.items()
    }


def trained_size(weights: int, width: int, optimizer: OptimizerConfig) -> ArtifactSize:
    """The size of a checkpoint: its trained weights, their fp32 copies if their precision is lower, and the
    optimizer's moments.

    Args:
        weights: number of trained weights.
        width: bytes per weight.
    """
    sets = 2 if optimizer.moments == "by_use" else 1
    state = (_MASTER if width < _MASTER else 0) + (sets * _MOMENTS if optimizer.carry_state else 0)
    retained: dict[Kept, float] = {"checkpoints": float(weights * width), "optimizer": float(weights * state)}
    return ArtifactSize(sum(retained.values()), retained, estimated=True)
