"""Settings of the engines that sample text from the policy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from erl_pipeline.config.base import Settings
from erl_pipeline.generation.vllm.config import VllmEngineConfig


class SamplingConfig(Settings):
    """How tokens are drawn. Top-p and top-k are left out on purpose: they cut the behaviour policy's
    support, and a ratio of log-probabilities has no meaning on tokens that could not be drawn."""

    temperature: float = Field(default=1.0, gt=0.0, le=2.0)
    """Divides the logits before the softmax; stored log-probabilities are those after it."""
    max_new_tokens: int = Field(default=8, ge=1)
    """Most tokens of one turn of an attempt."""
    max_reflection_tokens: int = Field(default=8, ge=1)
    """Most tokens of one reflection."""


class TransformersEngineConfig(Settings):
    """The embedded engine: transformers with a key-value cache, in this process, no server."""

    type: Literal["transformers"] = "transformers"
    max_batch_sequences: int = Field(default=256, ge=1)
    """Most sequences in one forward pass; longer lists are cut into batches of similar length."""


EngineConfig = Annotated[TransformersEngineConfig | VllmEngineConfig, Field(discriminator="type")]
