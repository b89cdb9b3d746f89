"""The first checkpoint of a run, by kind of policy: a cold start of the tiny policy, or the copy of a
pretrained one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from pydantic import Field, SerializeAsAny

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.config.plugins import NO_BYTES, plugins
from erl_pipeline.config.policy import (
    DemonstrationsWarmStart,
    PretrainedPolicyConfig,
    TemplateArgument,
    TinyPolicyConfig,
)
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import MODEL, PolicyTraits
from erl_pipeline.stages.tasks.prepare_tasks import digests, located_environment, without_files
from erl_pipeline.stages.training.warm_start import plan_warm_start, warm_start_stage

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.environments.demonstrations import TinyParts
    from erl_pipeline.plan.planner import Planner
    from erl_pipeline.plan.sources import Sources

SettingsT = TypeVar("SettingsT", bound=PluginSettings)


@dataclass(frozen=True)
class PolicyKind(Generic[SettingsT]):
    """What an entry point of `erl_pipeline.policies` names.

    The module that holds it imports heavy packages only within functions: it is imported in every process.
    """

    settings: type[SettingsT]
    """Has a field `type: Literal["..."]`, by which a configuration chooses the kind."""
    traits: Callable[[SettingsT], PolicyTraits]
    plan_first: Callable[[Planner], str] = field(metadata=NO_BYTES)
    """Plans the stages that make the run's first checkpoint; returns its id."""
    first_stage: Callable[[SettingsT], Stage[Any]] = field(metadata=NO_BYTES)
    """The last of these stages."""
    require_possible: Callable[[RunConfig], None] = field(default=lambda _config: None, metadata=NO_BYTES)
    """Raises ValueError, which names them, for settings of a run that do not go with the kind."""
    packages: tuple[str, ...] = field(default=(), metadata=NO_BYTES)
    """Further packages whose code decides what the first checkpoint is; its own always counts."""


_RETRIES = 0.5  # share of failures after which a retry is demonstrated, where the method has such prompts


class ColdStartSettings(Settings):
    """What the tiny policy depends on, and nothing that is hidden from it, so that runs of a store share
    it."""

    policy: TinyPolicyConfig
    """Without its seed, which is in the recipe."""
    environment: SerializeAsAny[PluginSettings]
    """Without the settings that name files."""
    files: dict[str, str] = Field(default_factory=dict, exclude_if=lambda files: not files)
    """Setting that names a file whose tasks are not shown -> SHA-256 of the file."""


class PretrainedSettings(Settings):
    """Which model is copied in, by the digest of its files."""

    weights: str
    dtype: Literal["float32", "bfloat16"]
    template_arguments: dict[str, TemplateArgument] = Field(
        default_factory=dict, exclude_if=lambda arguments: not arguments
    )


def _cold_start_slice(config: RunConfig, sources: Sources) -> ColdStartSettings:
    assert isinstance(config.policy, TinyPolicyConfig)
    plugin = plugins("environments")[config.environment.type].value
    method = plugins("methods")[config.method.type].value
    retries = config.policy.cold_start.retries
    if retries is None and method.shows_failed_attempts(config.method):
        retries = _RETRIES
    learning = config.policy.cold_start.model_copy(update={"seed": 0, "retries": retries or None})
    shown = plugin.tiny.shown(config.environment)
    return ColdStartSettings(
        policy=config.policy.model_copy(update={"cold_start": learning}),
        environment=without_files(plugin, shown),
        files=digests(plugin, shown, sources),
    )


def plan_cold_start(planner: Planner) -> str:
    """Plan the tiny policy's first checkpoint; returns its id."""
    config = planner.config
    assert isinstance(config.policy, TinyPolicyConfig)
    seed = config.policy.cold_start.seed
    return planner.add(COLD_START, {}, iteration=None, seed=config.seed if seed == "run" else seed)


def _cold_start(call: StageCall[ColdStartSettings]) -> StageResult:
    plugin, environment = located_environment(call)
    return cold_start_with(call, plugin.tiny.require(environment))


def cold_start_with(call: StageCall[ColdStartSettings], parts: TinyParts) -> StageResult:
    """Train a tiny model on an environment's demonstrations; write its checkpoint."""
    from erl_pipeline.engines.probe import save_probe
    from erl_pipeline.policies.hardware import adds_in_fixed_order, training_device
    from erl_pipeline.policies.pretrained import load_policy
    from erl_pipeline.policies.tiny.cold_start import cold_start

    settings = call.settings
    gate = settings.policy.cold_start.gate
    told = 0

    def on_step(step: int, steps: int, loss: float) -> None:
        nonlocal told
        call.progress.raise_if_stopped()
        if steps != told:  # at the start, and whenever the gate asks for more
            call.progress.begin(
                steps, "steps" if not told else "steps, more until it passes policy.cold_start.gate"
            )
            told = steps
            call.progress.advance(step - 1)
        call.progress.advance(1, loss=loss)

    made = cold_start(settings.policy, parts, seed=call.seed, output_dir=call.folder / MODEL, on_step=on_step)
    save_probe(load_policy(call.folder / MODEL), call.folder)
    counters = {"optimizer_steps": made.steps, "trained_tokens": made.trained_tokens}
    metrics = {"loss": made.loss}
    if parts.examinations:
        counters["gate_missed"] = 0
    for each in parts.examinations:
        share = metrics[each.name] = made.shares_right[each.name]
        if share < gate:
            counters["gate_missed"] = 1
            call.progress.warn(
                f"the cold start ended after {made.steps} steps with {each.name} {share:.2f}, less than "
                f"policy.cold_start.gate: {gate:g}; {each.otherwise}. Raise policy.cold_start.most_steps, or "
                "choose another policy.cold_start.seed"
            )
    same = adds_in_fixed_order(training_device())
    return StageResult(counters=counters, metrics=metrics, determinism="bytes" if same else "approximate")


def _pretrained_slice(config: RunConfig, sources: Sources) -> PretrainedSettings:
    assert isinstance(config.policy, PretrainedPolicyConfig)
    assert sources.weights is not None
    return PretrainedSettings(
        weights=sources.weights,
        dtype=config.policy.dtype,
        template_arguments=config.policy.template_arguments,
    )


def _copy_pretrained(call: StageCall[PretrainedSettings]) -> StageResult:
    from erl_pipeline.engines.probe import save_probe
    from erl_pipeline.policies.pretrained import load_policy, save_policy

    settings = call.settings
    loaded = load_policy(
        call.locations[settings.weights],
        dtype=settings.dtype,
        template_arguments=settings.template_arguments,
    )
    save_policy(loaded, call.folder / MODEL)
    save_probe(loaded, call.folder)
    return StageResult(counters={"parameters": sum(p.numel() for p in loaded.model.parameters())})


COLD_START = Stage(
    name="bootstrap",
    version=6,
    output="checkpoint",
    settings=ColdStartSettings,
    compute=_cold_start,
    slice=_cold_start_slice,
    code=("environment",),
    needs="training",
)

COPY_PRETRAINED = Stage(
    name="bootstrap",
    version=6,
    output="checkpoint",
    settings=PretrainedSettings,
    compute=_copy_pretrained,
    slice=_pretrained_slice,
)
"""The policy is copied into the store, so that the run does not depend on a folder that may change."""


def _tiny_traits(policy: TinyPolicyConfig) -> PolicyTraits:
    # 12 h^2 weights and 13 h biases and norms in each block of a GPT-2.
    parameters = policy.layers * (12 * policy.hidden_size**2 + 13 * policy.hidden_size)
    return PolicyTraits(own_words=True, parameters=parameters)


def _require_tiny(config: RunConfig) -> None:
    assert isinstance(config.policy, TinyPolicyConfig)
    environment = plugins("environments")[config.environment.type].value
    parts = environment.tiny.require(config.environment)
    method = plugins("methods")[config.method.type].value
    if not method.shows_failed_attempts(config.method):
        return
    # Its prompts must be in the cold start.
    told = "attempts that are shown how another failed (method.show_failed_attempt, method.reflection: off)"
    if not parts.retry_tokens:
        raise ValueError(
            f"environment: {config.environment.type} has no demonstrations of {told}; with policy.type: tiny "
            "switch them off (method.show_failed_attempt: off)"
        )
    if config.policy.cold_start.retries == 0.0:
        raise ValueError(
            f"policy.cold_start.retries: 0.0 leaves out {told}; allowed is more than 0.0, or null for a "
            "sufficient share"
        )


def _require_pretrained(config: RunConfig) -> None:
    assert isinstance(config.policy, PretrainedPolicyConfig)
    if isinstance(config.policy.warm_start, DemonstrationsWarmStart):
        environment = plugins("environments")[config.environment.type].value
        environment.require_warm_start(config.environment)


TINY = PolicyKind(
    settings=TinyPolicyConfig,
    traits=_tiny_traits,
    plan_first=plan_cold_start,
    first_stage=lambda _policy: COLD_START,
    require_possible=_require_tiny,
)
PRETRAINED = PolicyKind(
    settings=PretrainedPolicyConfig,
    traits=lambda policy: PolicyTraits(
        model=policy.model,
        dtype=policy.dtype,
        head_dtype=policy.head_dtype,
        template_arguments=policy.template_arguments,
        lora=policy.lora,
        warm_start=policy.warm_start,
    ),
    plan_first=lambda planner: plan_warm_start(planner, planner.add(COPY_PRETRAINED, {}, iteration=None)),
    first_stage=lambda policy: (
        COPY_PRETRAINED if policy.warm_start is None else warm_start_stage(policy.warm_start)
    ),
    require_possible=_require_pretrained,
)
