"""How much disk space a plan takes: at its end, and at most before that, with what retention removes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from erl_pipeline.plan.plan import PlannedStage
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
