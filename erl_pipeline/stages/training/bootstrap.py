"""The stages that make the first checkpoint: a cold start of the tiny policy, or the copy of a pretrained
one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, SerializeAsAny

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.policy import PretrainedPolicyConfig, TinyPolicyConfig
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import MODEL
from erl_pipeline.stages.determinism import training_determinism
from erl_pipeline.stages.tasks.prepare_tasks import digests, located, without_files

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.environments.demonstrations import TinyParts
    from erl_pipeline.plan.planner import Planner
    from erl_pipeline.plan.sources import Sources


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
    environment = located(call.settings.environment, call.settings.files, call.locations)
    plugin = plugins("environments")[environment.type].value
    return cold_start_with(call, plugin.tiny.parts(environment))


def cold_start_with(call: StageCall[ColdStartSettings], parts: TinyParts) -> StageResult:
    """Train a tiny model on an environment's demonstrations; write its checkpoint."""
    from erl_pipeline.policies.hardware import training_device
    from erl_pipeline.policies.tiny.cold_start import cold_start

    settings = call.settings
    gate = settings.policy.cold_start.gate
    told = 0

    def on_step(step: int, steps: int, loss: float) -> None:
        nonlocal told
        call.progress.raise_if_stopped()
        if steps != told:  # at the start, and whenever the gate asks for more
            call.progress.begin(steps, "steps" if not told else "steps, more since the gate was missed")
            told = steps
            call.progress.advance(step - 1)
        call.progress.advance(1, loss=loss)

    made = cold_start(settings.policy, parts, seed=call.seed, output_dir=call.folder / MODEL, on_step=on_step)
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
    return StageResult(
        counters=counters, metrics=metrics, determinism=training_determinism(training_device())
    )


def _pretrained_slice(config: RunConfig, sources: Sources) -> PretrainedSettings:
    assert isinstance(config.policy, PretrainedPolicyConfig)
    assert sources.weights is not None
    return PretrainedSettings(weights=sources.weights, dtype=config.policy.dtype)


def _copy_pretrained(call: StageCall[PretrainedSettings]) -> StageResult:
    from erl_pipeline.policies.pretrained import load_policy, save_policy

    loaded = load_policy(call.locations[call.settings.weights], dtype=call.settings.dtype)
    save_policy(loaded, call.folder / MODEL)
    return StageResult(counters={"parameters": sum(p.numel() for p in loaded.model.parameters())})


COLD_START = Stage(
    name="bootstrap",
    version=4,
    output="checkpoint",
    settings=ColdStartSettings,
    compute=_cold_start,
    slice=_cold_start_slice,
    code=("environment",),
    needs="device",
)

COPY_PRETRAINED = Stage(
    name="bootstrap",
    version=3,
    output="checkpoint",
    settings=PretrainedSettings,
    compute=_copy_pretrained,
    slice=_pretrained_slice,
)
"""The policy is copied into the store, so that the run does not depend on a folder that may change."""
