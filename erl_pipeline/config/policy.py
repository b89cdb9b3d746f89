"""Settings of the policy that is trained."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from erl_pipeline.config.base import Settings
from erl_pipeline.config.warm_start import WarmStartConfig

ModuleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.]+$")]
"""A module's name in a model, or the end of it."""


class ColdStartConfig(Settings):
    """Supervised training of the tiny policy on weak scripted demonstrations over a family of worlds."""

    seed: Annotated[int, Field(ge=0)] | Literal["run"] = 0
    """Chooses the first weights and the demonstrations. `run`: the run's seed, so that runs with different
    seeds begin with different policies; else all runs of a store share one."""
    steps: int = Field(default=400, ge=1)
    """Optimizer steps, where `gate` asks for no more. After 60 % of them the learning rates fall."""
    most_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps at most, however far from `gate` the policy is; `null`: three times `steps`."""
    gate: float = Field(default=0.95, ge=0.0, le=1.0)
    """Before the learning rates fall, go on until the policy gives so large a share of the right answers
    where the environment asks for them (FrozenLake: action words in reflections that the attempt has
    shown, `seen_slots_right`). A cold start that ends with less says so. 0: no gate."""
    demonstrations_per_step: int = Field(default=32, ge=1)
    """Demonstrated attempts in one step; reflections on the failed ones come on top."""
    learning_rate: float = Field(default=3e-3, gt=0.0)
    """Peak learning rate of AdamW: embeddings, head, biases and norms."""
    matrix_learning_rate: float = Field(default=0.01, gt=0.0)
    """Peak learning rate of Muon: the weight matrices of the blocks."""
    random_intent: float = Field(default=0.1, ge=0.0, le=1.0)
    """Chance that a demonstrated action is any at all instead of one that the scripted player chose."""
    blank_notes: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of attempts that are demonstrated without notes, as every first attempt is."""
    swapped_notes: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of notes and memories with two action words swapped, so that the policy does not trust them more
    than what it sees."""
    reshuffled_notes: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share of notes and memories whose action words are in any order at all."""
    reflections_per_failure: int = Field(default=4, ge=1)
    """Reflections that are demonstrated on one failed attempt, each with another memory."""
    retries: float | None = Field(default=None, ge=0.0, le=1.0)
    """Share of the failed attempts after which one is demonstrated that is told how they went. `null`: 0.5
    where second attempts of the method are told so (`method.show_failed_attempt`), none elsewhere. Methods
    that are to be compared from one start need the same share."""

    @property
    def limit(self) -> int:
        """Optimizer steps at most."""
        return 3 * self.steps if self.most_steps is None else self.most_steps

    @model_validator(mode="after")
    def _possible_together(self) -> ColdStartConfig:
        if self.swapped_notes + self.reshuffled_notes > 1.0:
            raise ValueError(
                f"swapped_notes: {self.swapped_notes:g} and reshuffled_notes: {self.reshuffled_notes:g}: "
                "allowed is a sum of at most 1, since they are shares of the same notes"
            )
        if self.limit < self.steps:
            raise ValueError(
                f"most_steps: {self.most_steps}: allowed is at least steps: {self.steps}; set both"
            )
        return self


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
    warm_start: WarmStartConfig | None = None
    """Supervised training of all weights before the first iteration, on `{type: demonstrations}` of the
    environment or on `{type: messages}` of a file; `null`: the model as it is. Runs of a store share it. An
    adapter is trained on top of it."""


PolicyConfig = Annotated[TinyPolicyConfig | PretrainedPolicyConfig, Field(discriminator="type")]
