"""The embedded engine: transformers with a key-value cache, in the process of the stage."""

from typing import Literal

from pydantic import Field

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.engines import interface


class TransformersEngineConfig(PluginSettings):
    """The embedded engine: transformers with a key-value cache, in this process, no server."""

    type: Literal["transformers"] = "transformers"
    max_batch_sequences: int = Field(default=256, ge=1)
    """The most sequences in one forward pass; more are split into batches of sequences of similar length."""


def _open(
    settings: TransformersEngineConfig, model: interface.SampledModel, call: interface.EngineCall
) -> interface.OpenedEngine:
    # torch takes seconds to import, which a process that only plans should not pay.
    from erl_pipeline.engines.embedded.engine import EmbeddedEngine

    engine = EmbeddedEngine(settings.max_batch_sequences, stop=call.stop, on_tokens=call.on_tokens)
    policy = model.load()
    engine.serve(model.name, policy.model, policy.eos_token_ids)
    return interface.OpenedEngine(engine)


ENGINE = interface.EnginePlugin(
    settings=TransformersEngineConfig,
    open=_open,
    head_dtype=lambda _settings, policy: policy,
    capacity=lambda settings, asked: interface.SamplingCapacity(min(settings.max_batch_sequences, asked)),
)
