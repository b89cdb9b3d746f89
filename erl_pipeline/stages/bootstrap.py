"""The stages that make the first checkpoint: a cold start of the tiny policy, or the copy of a pretrained
one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import SerializeAsAny

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.config.installed import plugins
from erl_pipeline.config.policy import PretrainedPolicyConfig, TinyPolicyConfig
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import MODEL
from erl_pipeline.stages.determinism import training_determinism

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.environments.tiny_parts import TinyParts
    from erl_pipeline.plan.sources import Sources


class ColdStartSettings(Settings):
    """What the tiny policy follows from; neither the run's seed nor anything that is hidden from it, so that
    all runs of a store share it."""

    policy: TinyPolicyConfig
    environment: SerializeAsAny[PluginSettings]


class PretrainedSettings(Settings):
    """Which model is copied in, by the digest of its files."""

    weights: str
    dtype: Literal["float32", "bfloat16"]


def _cold_start_slice(config: RunConfig, sources: Sources) -> ColdStartSettings:
    assert isinstance(config.policy, TinyPolicyConfig)
    plugin = plugins("environments")[config.environment.type].value
    return ColdStartSettings(policy=config.policy, environment=plugin.shown_to_tiny(config.environment))


def _cold_start(call: StageCall[ColdStartSettings]) -> StageResult:
    plugin = plugins("environments")[call.settings.environment.type].value
    return cold_start_with(call, plugin.tiny(call.settings.environment))


def cold_start_with(call: StageCall[ColdStartSettings], parts: TinyParts) -> StageResult:
    """Make a tiny model of an environment's parts; write its checkpoint."""
    from erl_pipeline.policies.hardware import training_device
    from erl_pipeline.policies.tiny.cold_start import cold_start

    settings = call.settings
    call.progress.begin(settings.policy.cold_start.steps, "steps")

    def on_step(_step: int, loss: float) -> None:
        call.progress.raise_if_stopped()
        call.progress.advance(1, loss=loss)

    metrics = cold_start(
        settings.policy,
        parts,
        seed=call.seed,
        output_dir=call.folder / MODEL,
        on_step=on_step,
    )
    return StageResult(metrics=metrics, determinism=training_determinism(training_device()))


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
    version=2,
    output="checkpoint",
    settings=ColdStartSettings,
    compute=_cold_start,
    slice=_cold_start_slice,
    code=("environment",),
    needs="device",
)

COPY_PRETRAINED = Stage(
    name="bootstrap",
    version=2,
    output="checkpoint",
    settings=PretrainedSettings,
    compute=_copy_pretrained,
    slice=_pretrained_slice,
)
"""The policy is copied in, so that the run does not depend on a folder that may change."""
