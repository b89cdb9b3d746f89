"""Settings of the policy that is trained."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from erl_pipeline.config.base import Settings

ModuleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.]+$")]
"""A module's name in a model, or the end of it."""


class ColdStartConfig(Settings):
    """Supervised training of the tiny policy on weak scripted demonstrations over a family of worlds."""

    steps: int = Field(default=500, ge=1)
    """Optimizer steps."""
    demonstrations_per_step: int = Field(default=64, ge=1)
    """Demonstrated attempts in one step; reflections on the failed ones come on top."""
    learning_rate: float = Field(default=3e-3, gt=0.0)
    """Peak learning rate of AdamW: embeddings, head, biases and norms."""
    matrix_learning_rate: float = Field(default=0.02, gt=0.0)
    """Peak learning rate of Muon: the weight matrices of the blocks."""
    random_intent: float = Field(default=0.1, ge=0.0, le=1.0)
    """Chance that a demonstrated action is any at all instead of one that the scripted player chose."""
    blank_notes: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of attempts that are demonstrated without notes, as every first attempt is."""
    retries: float | None = Field(default=None, ge=0.0, le=1.0)
    """Share of the failed attempts after which one is demonstrated that is told how they went. `null`: 0.5
    where second attempts of the method are told so (`method.show_failed_attempt`), none elsewhere. Methods
    that are to be compared from one start need the same share."""


class TinyPolicyConfig(Settings):
    """A small GPT-2 with a word-level tokenizer that is made by a cold start; it needs `format: compact`."""

    type: Literal["tiny"] = "tiny"
    hidden_size: int = Field(default=64, ge=32)
    """Width of the residual stream."""
    layers: int = Field(default=4, ge=1)
    """Blocks."""
    heads: int = Field(default=2, ge=1)
    """Attention heads."""
    cold_start: ColdStartConfig = ColdStartConfig()

    @model_validator(mode="after")
    def _head_size_is_served(self) -> TinyPolicyConfig:
        """vLLM's CPU attention takes heads of 32 and 64."""
        if self.hidden_size not in (32 * self.heads, 64 * self.heads):
            raise ValueError(
                f"hidden_size: {self.hidden_size} with heads: {self.heads}: allowed are {32 * self.heads} "
                f"and {64 * self.heads} (heads of size 32 or 64, which vLLM serves)"
            )
        return self


class LoraConfig(Settings):
    """Low-rank adaptation (arXiv 2106.09685): the model's weights stay as they are, an adapter is trained.

    There is no dropout: the policy that is trained must be the one that sampled.
    """

    rank: int = Field(default=16, ge=1, le=512)
    """Rank of each matrix's change; 512 is the most that vLLM serves."""
    alpha: int = Field(default=32, ge=1)
    """The change is scaled by `alpha / rank`."""
    target_modules: tuple[ModuleName, ...] | None = None
    """Last parts of the names of the modules that are adapted, such as `[q_proj, v_proj]`; `null` takes every
    linear layer but the output head."""

    @field_validator("target_modules")
    @classmethod
    def _named_once(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """In one order, so that the same modules are the same setting."""
        if value is None:
            return None
        if not value:
            raise ValueError("name at least one module, or null for every linear layer")
        if len(set(value)) < len(value):
            raise ValueError(f"a module is named twice: {', '.join(value)}")
        return tuple(sorted(value))


class PretrainedPolicyConfig(Settings):
    """Any causal language model that transformers loads, with a tokenizer that has a chat template."""

    type: Literal["pretrained"]
    model: str = Field(min_length=1)
    """Folder of a checkpoint, or a name on the Hugging Face hub."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the weights in training and generation; an adapter has the same."""
    lora: LoraConfig | None = None
    """Train an adapter of the model; `null` trains all weights. An adapter takes a higher learning rate
    (`optimizer.learning_rate`), about ten times that of all weights."""


PolicyConfig = Annotated[TinyPolicyConfig | PretrainedPolicyConfig, Field(discriminator="type")]
