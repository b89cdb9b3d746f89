"""Disk space: the sizes of artifacts, also of those whose stages have never run, and what a plan takes at its
end and at most before that, with what retention removes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from erl_pipeline.config.optimizer import OptimizerConfig
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.plan import PlannedStage
from erl_pipeline.policies.checkpoints import policy_traits
from erl_pipeline.stages.training.training_stage import TrainingSettings
from erl_pipeline.stages.training.warm_start import WarmStartSettings
from storage.errors import InputError
from storage.upkeep.rules import Kept, RetentionRule


@dataclass(frozen=True)
class ArtifactSize:
    """Expected bytes of an artifact, and how many of them each retention rule may remove. `estimated`: they
    are computed from the model's size, because no artifact of the stage is known."""

    bytes: float
    retained: Mapping[Kept, float] = field(default_factory=dict)
    estimated: bool = False


@dataclass(frozen=True)
class DiskForecast:
    """Bytes that a plan adds to a store: `peak` at most at one time, `end` at the end; `removed` is what
    retention removes. The sizes of `unknown` stages are left out; those of `estimated` stages are computed
    from the model's size."""

    peak: float
    end: float
    removed: float
    unknown: tuple[str, ...]
    estimated: tuple[str, ...]


def forecast_disk(
    computed: Iterable[PlannedStage],
    sizes: Mapping[str, ArtifactSize],
    rules: Mapping[Kept, RetentionRule],
    lag: int = 0,
) -> DiskForecast:
    """The disk space for computing these stages, one iteration after the other; the rules are applied after
    each iteration.

    Args:
        sizes: the size of an artifact, by the name of its stage.
        lag: how many iterations before the newest have checkpoints that are still sampled from.
    """
    iterations: defaultdict[int, list[str]] = defaultdict(list)
    for node in computed:
        iterations[node.iteration or 0].append(node.stage.name)
    names = list(dict.fromkeys(name for each in iterations.values() for name in each))
    there: defaultdict[Kept, dict[int, float]] = defaultdict(dict)
    stored = peak = removed = 0.0
    for iteration in sorted(iterations):
        known = [sizes[name] for name in iterations[iteration] if name in sizes]
        stored += sum(size.bytes for size in known)
        peak = max(peak, stored)
        if not iteration:
            continue
        for kind, rule in rules.items():
            there[kind][iteration] = sum(size.retained.get(kind, 0.0) for size in known)
            kept = rule.kept(range(1, iteration + 1)) | set(range(iteration - lag, iteration + 1))
            for gone in [number for number in there[kind] if number not in kept]:
                freed = there[kind].pop(gone)
                stored, removed = stored - freed, removed + freed
    return DiskForecast(
        peak=peak,
        end=stored,
        removed=removed,
        unknown=tuple(name for name in names if name not in sizes),
        estimated=tuple(name for name in names if name in sizes and sizes[name].estimated),
    )


def bytes_of(nodes: Sequence[PlannedStage], sizes: Mapping[str, ArtifactSize]) -> float:
    """The total size of the artifacts of these stages, without those of unknown size."""
    return sum(sizes[node.stage.name].bytes for node in nodes if node.stage.name in sizes)


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
