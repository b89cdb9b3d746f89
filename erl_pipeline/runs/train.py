"""Training a run: what is checked before its first stage, the execution of its plan, and what follows each
iteration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.plan import Plan, RunState, StageKey
from erl_pipeline.plan.sources import read_sources
from erl_pipeline.plan.stage import StageOutcome
from erl_pipeline.policies.checkpoints import policy_traits
from erl_pipeline.runs.disk import DiskWatch
from erl_pipeline.runs.driver import OpenRun, execute_run
from erl_pipeline.runs.environment_checks import require_tasks_of
from erl_pipeline.runs.planning import lost_stages, plan_for, stages_before, whole_iterations
from erl_pipeline.runs.retention import DriverRetention
from erl_pipeline.runs.warnings import WarningWatch
from storage.errors import ConfigError, InputError

if TYPE_CHECKING:
    import torch


def require_tools_are_known(config: RunConfig) -> None:
    """Raise `InputError` if the environment's settings ask for tools that the policy's chat template does not
    know. The tokenizer is read only if they ask for tools."""
    plugin = plugins("environments")[config.environment.type].value
    try:
        plugin.episodes.for_template(config.environment, False)
    except InputError:
        traits = policy_traits(config.policy)
        if traits.model is None:
            raise
        from erl_pipeline.episodes.dialogue import ChatTokenizer
        from erl_pipeline.policies.tokenizers import load_tokenizer

        tokenizer = load_tokenizer(traits.model, traits.template_arguments)
        plugin.episodes.for_template(config.environment, ChatTokenizer(tokenizer).knows_tools)


def require_template_arguments(config: RunConfig) -> None:
    """Raise `InputError` if `policy.template_arguments` names something that the policy's chat template does
    not read. The tokenizer is read only if it names something."""
    traits = policy_traits(config.policy)
    if traits.model is not None and traits.template_arguments:
        from erl_pipeline.policies.tokenizers import load_tokenizer

        load_tokenizer(traits.model, traits.template_arguments)


def require_ready_here(config: RunConfig) -> None:
    """Raise `ConfigError` if a run would be computed on this machine, and the machine lacks what its trainer,
    its engine or its resources need, cannot load an embedding model that the configuration names, or cannot
    repeat updates that may have to be repeated. Nothing is checked for a runner that computes on other
    machines."""
    if plugins("runners")[config.runner.type].value.elsewhere:
        return
    plugins("trainers")[config.trainer.type].value.require_here(config.trainer)
    plugins("engines")[config.engine.type].value.require_here(config.engine)
    require_embedding_models(config)
    if config.retention.optimizer_every > 1:
        from erl_pipeline.policies.hardware import training_device

        if config.resources.determinism == "approximate":
            require_repeatable(config.retention.optimizer_every, training_device())
        require_state_stays(config, training_device())
    if config.resources.groups is None and config.resources.determinism == "approximate":
        return
    # torch takes seconds to import.
    from erl_pipeline.policies.hardware import kinds_of_gpus

    require_gpus(config, kinds_of_gpus())


def require_embedding_models(config: RunConfig) -> None:
    """Raise `ConfigError` if an embedding model that the configuration names cannot be loaded: it is asked
    for only after the first rollouts. The default one is installed with the package, and the environment's is
    loaded first of all, if it is."""
    settings = config.model_dump(mode="json", exclude_defaults=True, exclude={"environment"})
    named = set(_values("embedding_model", settings))
    if named:
        # torch takes seconds to import.
        from erl_pipeline.policies.embedding import SentenceEmbedder

        for model in sorted(named):
            SentenceEmbedder(model).embed([""])


def _values(name: str, settings: object) -> Iterator[str]:
    """Those of all settings of this name, wherever they are."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            if key == name:
                yield value
            else:
                yield from _values(name, value)


def warnings_of_gpus(config: RunConfig) -> list[str]:
    """Sentences on what makes it likely that this machine's GPUs have too little memory for a run."""
    if plugins("runners")[config.runner.type].value.elsewhere or config.resources.groups is not None:
        return []
    reason = plugins("engines")[config.engine.type].value.keeps_gpus_because(config.engine)
    if not reason:
        return []
    # torch takes seconds to import.
    from erl_pipeline.policies.hardware import kinds_of_gpus

    return [reason] if kinds_of_gpus() else []


def require_gpus(config: RunConfig, gpus: Sequence[str]) -> None:
    """Raise `ConfigError` if `resources.groups` names a GPU that is not there, or if `resources.determinism:
    bytes` cannot be kept by what is there.
    """
    resources, groups = config.resources, config.resources.groups
    if groups is not None:
        missing = [number for number in (*groups.sample, *groups.train) if number >= len(gpus)]
        if missing:
            raise ConfigError(
                f"resources.groups names GPU {', '.join(map(str, missing))}, and this machine has "
                f"{len(gpus)} (numbers count from 0, within CUDA_VISIBLE_DEVICES where that is set); name "
                "those that are there, or leave resources.groups out"
            )
    if resources.determinism == "approximate":
        return
    if len(kinds := sorted(set(gpus))) > 1:
        raise ConfigError(
            f"resources.determinism: bytes cannot be kept on several kinds of GPUs, and this machine has "
            f"{', '.join(kinds)}: name those of one kind in CUDA_VISIBLE_DEVICES"
        )
    if not gpus:
        engine = plugins("engines")[config.engine.type].value
        if reason := engine.bytes_vary_because(config.engine, False):
            raise ConfigError(
                f"resources.determinism: bytes cannot be kept on a machine without a GPU: {reason}"
            )


def require_repeatable(every: int, device: torch.device) -> None:
    """Raise `ConfigError` for a device that does not repeat an update bit for bit, where the state of the
    optimizer is committed only each `every`-th iteration."""
    from erl_pipeline.policies.hardware import adds_in_fixed_order

    if not adds_in_fixed_order(device):
        raise ConfigError(
            f"retention.optimizer_every: {every}; allowed on this machine is 1, since an update on its GPU "
            "does not give the same bytes again without resources.determinism: bytes, so the state of the "
            "optimizer could not be recomputed"
        )


def require_state_stays(config: RunConfig, device: torch.device) -> None:
    """Raise `ConfigError` for a trainer in other processes on GPUs, which end before a policy is sampled
    there, if the state of the optimizer is not always committed."""
    if device.type == "cuda" and plugins("trainers")[config.trainer.type].value.elsewhere:
        raise ConfigError(
            f"retention.optimizer_every: {config.retention.optimizer_every}; allowed with trainer.type: "
            f"{config.trainer.type} on GPUs is 1, since its processes end when a policy is sampled"
        )


class IterationEnds:
    """Takes outcomes, and calls functions with the number of each iteration that is then complete.

    Args:
        trusted: places of the plan for which no outcome will come.
        calls: the functions, called in this order; an error that one raises ends the run.
    """

    def __init__(
        self, plan: Plan, trusted: Collection[StageKey], calls: Sequence[Callable[[int], None]]
    ) -> None:
        self._calls = calls
        self._pending: defaultdict[int, set[StageKey]] = defaultdict(set)
        for node in plan.nodes:
            if node.place not in trusted:
                self._pending[node.place.iteration].add(node.place)

    def take(self, outcome: StageOutcome) -> None:
        """Take the outcome of an artifact that is now recorded."""
        place = StageKey(outcome.iteration or 0, outcome.stage, outcome.key)
        pending = self._pending[place.iteration]
        if place not in pending:
            return
        pending.remove(place)
        if not pending:
            for call in self._calls:
                call(place.iteration)


def train(
    opened: OpenRun,
    iterations: int | None = None,
    check: bool = False,
    notify: Callable[[Plan], None] | None = None,
) -> RunState:
    """Execute the plan of a run up to `iterations` (default: the configuration's); return its state then.

    What is committed is reused. A start costs about the same however long the run is: of the artifacts in
    the ledger, only the files of the newest whole iteration are looked at, and of what something new is made
    from. With `check` all files are. What is damaged is set aside and made again, and so is what the store
    has lost, and what retention has removed if a stage reads it.

    Args:
        notify: is called with the plan before anything is done.

    Raises InputError, before a run's first stage, if its environment cannot offer the policy its tools or
    gives too few tasks, if the policy's chat template does not read an argument that it is to be given, or if
    a file or a model that it names is not there; ConfigError if its trainer needs
    more devices than this machine has.
    """
    from erl_pipeline.views.recording import recorded_metrics  # tensorboardX imports torch

    require_ready_here(opened.config)
    if not opened.recorded:
        require_template_arguments(opened.config)
        require_tools_are_known(opened.config)
    target = iterations or opened.config.iterations
    sources = read_sources(opened.config)
    plan = plan_for(
        opened.store.uri, opened.run, opened.config, target, sources=sources, entries=opened.entries()
    )
    for sentence in (
        *require_tasks_of(plan, opened.config, opened.store),
        *warnings_of_gpus(opened.config),
    ):
        opened.listener.warn(f"{sentence}.")
    if notify is not None:
        notify(plan)
    trusted: frozenset[StageKey] = frozenset()
    if not check:
        lost = lost_stages(opened.store, plan, opened.recorded)
        for node in lost:
            opened.listener.warn(
                f"{node.title} ({node.artifact_id}) is gone from the store, or damaged. It is made again."
            )
        trusted = trusted_places(plan, opened.recorded) - {node.place for node in lost}
    disk = DiskWatch(opened, plan)
    disk.before_run()
    with (
        recorded_metrics(opened.config, opened.store, opened.run, opened.stages()) as records,
        opened.observed_by([record.add for record in records]),
    ):
        warnings = WarningWatch(opened, [record.warn for record in records])
        warnings.before_run()
        pruning = DriverRetention(opened, plan, trusted, sources)
        ends = IterationEnds(
            plan, trusted, [warnings.after_iteration, pruning.after_iteration, disk.after_iteration]
        )

        def on_outcome(outcome: StageOutcome) -> None:
            disk.take(outcome)
            pruning.take(outcome)
            ends.take(outcome)

        execute_run(opened, plan, trusted, on_outcome, lambda: stages_before(opened.store.uri, opened.run))
    return plan.states[-1]


def trusted_places(plan: Plan, recorded: Mapping[StageKey, str]) -> frozenset[StageKey]:
    """The places where the ledger has what the plan has, except those of the newest whole iteration."""
    newest = whole_iterations(plan, recorded)
    return frozenset(
        place
        for node in plan.nodes
        if recorded.get(place := node.place) == node.artifact_id and place.iteration != newest
    )
