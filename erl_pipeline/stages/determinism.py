"""Whether a stage that computes with the policy gives the same bytes again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.plugins import plugins, with_operational
from storage.artifacts.manifest import Determinism

if TYPE_CHECKING:
    import torch

    from erl_pipeline.engines.interface import EnginePlugin
    from erl_pipeline.plan.stage import StageCall


def training_determinism(device: torch.device) -> Determinism:
    """`bytes` on a CPU. A GPU adds up gradients in whatever order its threads finish."""
    return "bytes" if device.type == "cpu" else "approximate"


def sampling_determinism(call: StageCall[Any], engine: PluginSettings, device: torch.device) -> Determinism:
    """That of the engine of a recipe, as this worker runs it."""
    plugin: EnginePlugin[Any] = plugins("engines")[engine.type].value
    running = with_operational("engines", engine, call.resources.settings.engine)
    return training_determinism(device) if plugin.repeats_bytes(running) else "approximate"
