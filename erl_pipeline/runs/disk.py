"""Disk space: the sizes of artifacts whose stages have never run, what a plan takes at its end and at most
before that, with what retention removes, and predicting a full disk."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from erl_pipeline.config.optimizer import OptimizerConfig
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.plan import Plan, PlannedStage
from erl_pipeline.plan.repetition import without_state
from erl_pipeline.plan.stage import StageOutcome
from erl_pipeline.policies.checkpoints import lacks_state, policy_traits
from erl_pipeline.runs.driver import OpenRun
from erl_pipeline.runs.store_lookups import ArtifactSize, StoreLookups, artifact_size
from erl_pipeline.stages.training.average_teacher import AverageSettings
from erl_pipeline.stages.training.training_stage import TrainingSettings
from erl_pipeline.stages.training.warm_start import WarmStartSettings
from storage.errors import InputError, StoreError
from storage.filesystem import free_bytes, open_root
from storage.upkeep.rules import Kept, RetentionRule


@dataclass(frozen=True)
class DiskForecast:
    """Bytes that a plan adds to a store: `peak` at most at one time, `end` at the end; `removed` is what
    retention removes. `iteration` is what an iteration commits, on average. The sizes of `unknown` stages are
    left out; those of `estimated` stages are computed from the model's size. `full_in` is the first iteration
    for which the free space does not suffice, 0 for what comes before the first one, None if it does."""

    peak: float
    end: float
    removed: float
    iteration: float
    unknown: tuple[str, ...]
    estimated: tuple[str, ...]
    full_in: int | None = None


def forecast_disk(
    computed: Iterable[PlannedStage],
    sizes: Mapping[str, ArtifactSize],
    rules: Mapping[Kept, RetentionRule],
    lag: int = 0,
    free: float | None = None,
    lacking: Collection[str] = (),
) -> DiskForecast:
    """The disk space for computing these stages, one iteration after the other; the rules are applied after
    each iteration.

    Args:
        sizes: the size of an artifact, by the name of its stage.
        lag: how many iterations before the newest have checkpoints that are still sampled from.
        free: bytes that the store has room for; None if that is not known.
        lacking: ids of the checkpoints that are committed without the state of the optimizer.
    """
    iterations: defaultdict[int, list[PlannedStage]] = defaultdict(list)
    for node in computed:
        iterations[node.iteration or 0].append(node)
    names = list(dict.fromkeys(node.stage.name for each in iterations.values() for node in each))
    there: defaultdict[Kept, dict[int, float]] = defaultdict(dict)
    stored = peak = removed = committed = 0.0
    full_in = None
    for iteration in sorted(iterations):
        known = _known_sizes(iterations[iteration], sizes, lacking)
        added = sum(size.bytes for size in known)
        stored += added
        peak = max(peak, stored)
        if full_in is None and free is not None and stored > free:
            full_in = iteration
        if not iteration:
            continue
        committed += added
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
        iteration=committed / max(1, len(iterations.keys() - {0})),
        unknown=tuple(name for name in names if name not in sizes),
        estimated=tuple(name for name in names if name in sizes and sizes[name].estimated),
        full_in=full_in,
    )


def bytes_of(
    nodes: Iterable[PlannedStage], sizes: Mapping[str, ArtifactSize], lacking: Collection[str] = ()
) -> float:
    """The total size of the artifacts of these stages, without those of unknown size; `lacking` as in
    `forecast_disk`."""
    return sum(size.bytes for size in _known_sizes(nodes, sizes, lacking))


def _known_sizes(
    nodes: Iterable[PlannedStage], sizes: Mapping[str, ArtifactSize], lacking: Collection[str]
) -> list[ArtifactSize]:
    found = []
    for node in nodes:
        size = sizes.get(node.stage.name)
        if size is not None and node.artifact_id in lacking:
            state = size.retained.get("optimizer", 0.0)
            size = replace(size, bytes=size.bytes - state, retained={**size.retained, "optimizer": 0.0})
        if size is not None:
            found.append(size)
    return found


_BYTES = {"float32": 4, "bfloat16": 2}
_MASTER, _MOMENTS = 4, 8


def estimate_checkpoints(config: RunConfig, nodes: Iterable[PlannedStage]) -> dict[str, ArtifactSize]:
    """The size of a checkpoint, by the name of the stage that makes it. Empty if the model's config.json is
    not on this machine. A tiny policy is counted without its vocabulary. The checkpoint of a warm start has
    all weights, and that of a teacher those that are trained; neither has the state of an optimizer."""
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

    def expected(settings: object) -> ArtifactSize:
        if isinstance(settings, TrainingSettings) and not isinstance(settings, WarmStartSettings):
            return trained_size(adapter or parameters, width, settings.optimizer)
        size = parameters * width
        if isinstance(settings, AverageSettings):
            size = (adapter or parameters) * _BYTES[settings.weights.dtype]
        return ArtifactSize(size, {"checkpoints": size}, estimated=True)

    return {name: expected(node.settings) for name, node in stages.items()}


def trained_size(weights: int, width: int, optimizer: OptimizerConfig) -> ArtifactSize:
    """The size of a checkpoint: its trained weights, their fp32 copies if their precision is lower, and the
    optimizer's moments.
    """
    sets = 2 if optimizer.moments == "by_use" else 1
    state = (_MASTER if width < _MASTER else 0) + (sets * _MOMENTS if optimizer.carry_state else 0)
    retained: dict[Kept, float] = {"checkpoints": float(weights * width), "optimizer": float(weights * state)}
    return ArtifactSize(sum(retained.values()), retained, estimated=True)


def expected_sizes(
    config: RunConfig, nodes: Sequence[PlannedStage], lookups: StoreLookups
) -> dict[str, ArtifactSize]:
    """The size of an artifact of each stage: from those of runs that train the same model, else from the
    model's size."""
    stages = {node.stage.name: node for node in nodes}
    known = {name: size for name in stages if (size := lookups.size(name)) is not None}
    return {
        **estimate_checkpoints(config, [node for name, node in stages.items() if name not in known]),
        **known,
    }


class DiskWatch:
    """Compares the disk space that a run needs with what is free. It does nothing for an object store."""

    def __init__(self, opened: OpenRun, plan: Plan) -> None:
        self._opened = opened
        self._plan = plan
        self._root = open_root(opened.store.uri)
        recorded = opened.recorded
        self._pending = [node for node in plan.nodes if recorded.get(node.place) != node.artifact_id]
        config = opened.config
        self._lacking = without_state(plan, config.retention.optimizer_every)
        lookups = StoreLookups(opened.store.uri, config.model_dump(mode="json"), entries=opened.entries())
        self._sizes = expected_sizes(config, self._pending, lookups)
        own = {place.stage for place in recorded}
        # A run that goes on does not list the store's artifacts, to start fast.
        if any(node.stage.name not in own for node in self._pending):
            self._pending = [node for node in self._pending if lookups.made_by(node) is None]

    def before_run(self) -> None:
        """Warn if the whole run will not fit, and say what to do.

        Raises StoreError if not even the next iteration fits and `resources.full_disk` is `refuse`.
        """
        free = free_bytes(self._root)
        if free is None or not self._pending:
            return
        self._require_room(min(node.iteration or 0 for node in self._pending))
        config = self._opened.config
        rules, lag = config.retention.rules(), config.pipeline.lag
        need = forecast_disk(self._pending, self._sizes, rules, lag, lacking=self._lacking)
        if need.peak > free:
            self._opened.listener.warn(
                f"the run to iteration {self._plan.iterations} needs about {_gigabytes(need.peak)} on the "
                f"disk, and {_gigabytes(free)} are free. Free some space, or set retention.checkpoints and "
                "retention.optimizer, such as 2, to remove files of old iterations"
            )

    def take(self, outcome: StageOutcome) -> None:
        """Expect the next artifact of a stage to be as large as this one."""
        if outcome.reused:
            return
        manifest = self._opened.store.find(outcome.artifact_id, outcome.stage)
        if manifest is not None and not lacks_state(manifest):
            self._sizes[outcome.stage] = artifact_size(manifest)

    def after_iteration(self, iteration: int) -> None:
        """Look at the next iteration. Raises StoreError if it does not fit and `resources.full_disk` is
        `refuse`."""
        self._require_room(iteration + 1)

    def _require_room(self, iteration: int) -> None:
        free = free_bytes(self._root)
        if free is None:
            return
        nodes = [node for node in self._pending if (node.iteration or 0) == iteration]
        need = bytes_of(nodes, self._sizes, self._lacking)
        if need <= free:
            return
        what = f"iteration {iteration}" if iteration else "what comes before the first iteration"
        said = (
            f"the disk would be full: {what} needs about {_gigabytes(need)}, and {_gigabytes(free)} are free "
            f"at {self._opened.store.uri}. Free some space or set retention.checkpoints and "
            "retention.optimizer, then run the same command again"
        )
        if self._opened.config.resources.full_disk == "refuse":
            raise StoreError(f"{said}; to go on anyway, set resources.full_disk=warn.")
        self._opened.listener.warn(f"{said}.")


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 5e7 else f"{size / 1e6:,.1f} MB"
