"""Settings of the policy that is trained."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.config.optimizer import MicrobatchConfig
from storage.texts import storable

ModuleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.]+$")]
"""A module's name in a model, or the end of it."""

TemplateArgumentName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
TemplateArgument = bool | int | float | str

GIVEN_TO_TEMPLATES = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "additional_special_tokens",
        "strftime_now",
        "raise_exception",
    }
)
"""What a chat template is given anyway, beside the tokenizer's special tokens (`bos_token` and so on)."""


class ColdStartConfig(Settings):
    """Supervised training of the tiny policy on weak scripted demonstrations over a family of worlds."""

    seed: Annotated[int, Field(ge=0)] | Literal["run"] = 0
    """Seed of the first weights and the demonstrations. `run`: the run's seed, so that runs with different
    seeds begin with different policies; with a number, all runs of a store share one policy."""
    steps: int = Field(default=400, ge=1)
    """Optimizer steps, unless `gate` asks for more. After 60 % of them the learning rates fall."""
    most_steps: int | None = Field(default=None, ge=1)
    """The most optimizer steps, even if the policy has not reached `gate`; `null`: three times `steps`."""
    gate: float = Field(default=0.95, ge=0.0, le=1.0)
    """The learning rates do not fall before the policy gives this share of right answers in each of the
    environment's checks: action words in reflections that the attempt has shown (`seen_slots_right`), and in
    Sokoban also moves where only one is best (`best_moves_right`). A cold start that ends below it says so.
    0: no gate."""
    demonstrations_per_step: int = Field(default=32, ge=1)
    """Demonstrated attempts in one step; reflections on the failed ones are added."""
    learning_rate: float = Field(default=3e-3, gt=0.0)
    """Peak learning rate of AdamW, which trains embeddings, head, biases and norms."""
    matrix_learning_rate: float = Field(default=0.01, gt=0.0)
    """Peak learning rate of Muon, which trains the weight matrices of the blocks."""
    random_intent: float = Field(default=0.1, ge=0.0, le=1.0)
    """Probability that a demonstrated action is random instead of the scripted player's choice."""
    blank_notes: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of attempts that are demonstrated without notes, like first attempts."""
    swapped_notes: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of notes and memories with two action words swapped, so that the policy trusts what it sees more
    than its notes."""
    reshuffled_notes: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share of notes and memories whose action words are in a random order."""
    reflections_per_failure: int = Field(default=4, ge=1)
    """Number of reflections that are demonstrated on one failed attempt, each with another memory."""
    retries: float | None = Field(default=None, ge=0.0, le=1.0)
    """Share of the failed attempts that are followed by a demonstrated attempt whose prompt shows the failed
    one. `null`: 0.5 if second attempts of the method see the first (`method.show_failed_attempt`), else 0.
    Methods that are compared from the same start need the same share."""

    @property
    def limit(self) -> int:
        """The most optimizer steps."""
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


class TinyPolicyConfig(PluginSettings):
    """A small GPT-2 with a word-level tokenizer, made by a cold start; it needs `format: compact`."""

    type: Literal["tiny"] = "tiny"
    hidden_size: int = Field(default=64, ge=32)
    """Width of the residual stream."""
    layers: int = Field(default=4, ge=1)
    """Number of blocks."""
    heads: int = Field(default=2, ge=1)
    """Number of attention heads."""
    cold_start: ColdStartConfig = ColdStartConfig()

    @model_validator(mode="after")
    def _head_size_is_served(self) -> TinyPolicyConfig:
        """Require a head size that vLLM's CPU attention supports: 32 or 64."""
        if self.hidden_size not in (32 * self.heads, 64 * self.heads):
            raise ValueError(
                f"hidden_size: {self.hidden_size} with heads: {self.heads}: allowed are {32 * self.heads} "
                f"and {64 * self.heads} (heads of size 32 or 64, which vLLM serves)"
            )
        return self


class LoraConfig(Settings):
    """Low-rank adaptation (arXiv 2106.09685): the model's weights do not change; an adapter is trained.

    There is no dropout: the policy that is trained must be the one that sampled.
    """

    rank: int = Field(default=16, ge=1, le=512)
    """Rank of the change of each matrix; 512 is the most that vLLM serves."""
    alpha: int = Field(default=32, ge=1)
    """The change is scaled by `alpha / rank`."""
    target_modules: tuple[ModuleName, ...] | None = None
    """The ends of the names of the modules that are adapted, such as `[q_proj, v_proj]`; `null`: every linear
    layer except the output head."""

    @field_validator("target_modules")
    @classmethod
    def _named_once(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Require each name once, and sort the names, so that the same modules give the same setting."""
        if value is None:
            return None
        if not value:
            raise ValueError("name at least one module, or null for every linear layer")
        if len(set(value)) < len(value):
            raise ValueError(f"a module is named twice: {', '.join(value)}")
        return tuple(sorted(value))


class PretrainedPolicyConfig(PluginSettings):
    """Any causal language model that transformers loads, with a tokenizer that has a chat template."""

    type: Literal["pretrained"]
    model: str = Field(min_length=1)
    """Folder of a checkpoint, or a name on the Hugging Face hub."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the weights in training and generation; an adapter has the same."""
    head_dtype: Literal["float32"] | None = Field(default=None, exclude_if=lambda head: head is None)
    """`float32`: the output head computes in float32 from weights in bfloat16, in training and generation, so
    that sampler and trainer differ less (MiniMax-M1, arXiv 2506.13585, section 3.2). It costs time and memory
    for a copy of the head's weights. With `engine: vllm` set `engine.head_dtype` too. `null`: as all other
    weights."""
    template_arguments: dict[TemplateArgumentName, TemplateArgument] = Field(
        default_factory=dict, exclude_if=lambda arguments: not arguments
    )
    """Arguments of the model's chat template, by name, such as `{enable_thinking: false}` for Qwen3. The
    checkpoint that the run begins with has them in the first lines of its template, so that whoever renders
    it sees the same, also another program that serves an exported checkpoint."""
    lora: LoraConfig | None = None
    """Train an adapter of the model; `null` trains all weights. An adapter needs a higher learning rate
    (`optimizer.learning_rate`): about ten times the one for all weights."""
    warm_start: WarmStartConfig | None = None
    """Supervised training of all weights before the first iteration, on demonstrations of the environment
    (`{type: demonstrations}`) or conversations of a file (`{type: messages}`); `null`: none. Runs of a store
    share the result. An adapter is trained on top of it."""

    @field_validator("template_arguments")
    @classmethod
    def _not_given_anyway(cls, value: dict[str, TemplateArgument]) -> dict[str, TemplateArgument]:
        """Refuse names of what templates are given anyway, and sort the names, so that the same arguments
        give the same setting."""
        for name, argument in value.items():
            if isinstance(argument, str) and storable(argument) != argument:
                raise ValueError(f"{name} holds half of a character")
            if name in GIVEN_TO_TEMPLATES or name.endswith("_token"):
                raise ValueError(f"{name} is given to each chat template by the program; leave it out")
        return dict(sorted(value.items()))

    @model_validator(mode="after")
    def _head_is_more_precise(self) -> PretrainedPolicyConfig:
        if self.head_dtype is not None and self.dtype == "float32":
            raise ValueError(
                "head_dtype: float32; allowed with dtype: float32 is null, since all computes so"
            )
        return self


class WarmStartSteps(MicrobatchConfig):
    """The steps of a warm start, by AdamW. The learning rate rises, stays at its peak, and falls."""

    steps: int = Field(default=170, ge=1)
    """Optimizer steps."""
    batch: int = Field(default=16, ge=1)
    """Conversations in one step."""
    learning_rate: float = Field(default=3e-4, gt=0.0)
    """Peak learning rate."""
    warm_up_steps: int = Field(default=20, ge=0)
    """Steps in which the learning rate rises linearly to its peak."""
    decay_from: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of the steps after which the learning rate falls linearly; 1: it never falls."""
    final_rate: float = Field(default=0.05, ge=0.0, le=1.0)
    """The learning rate at the last step, as a share of its peak."""
    seed: int = Field(default=0, ge=0)
    """Seed of the demonstrations and of the order of conversations. Runs with different seeds of their own
    share the warm start."""

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 1."""
        rise = min(1.0, step / (self.warm_up_steps + 1))
        peak = self.decay_from * self.steps
        fallen = max(0.0, step - peak) / (self.steps - peak) if peak < self.steps else 0.0
        return self.learning_rate * min(rise, 1.0 - (1.0 - self.final_rate) * fallen)


class DemonstrationsWarmStart(WarmStartSteps):
    """Scripted demonstrations of the environment, each in its own world, so that no single world is
    learned."""

    type: Literal["demonstrations"]
    first_attempts: int = Field(default=3, ge=0)
    """How many parts of all demonstrations are first attempts; there are `first_attempts + noted_attempts +
    reflections` parts."""
    noted_attempts: int = Field(default=4, ge=0)
    """How many parts are attempts with notes of an earlier attempt."""
    reflections: int = Field(default=3, ge=0)
    """How many parts are reflections on a failed attempt."""
    swapped_notes: float = Field(default=0.3, ge=0.0, le=1.0)
    """Share of notes and memories with two action words swapped, so that the policy does not trust them
    blindly."""
    reshuffled_notes: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of notes and memories whose action words are in a random order."""
    memories: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of reflections that see a memory."""
    examined: int = Field(default=96, ge=0)
    """Number of held-out tasks on which the policy is tested afterwards, with greedy answers."""

    @model_validator(mode="after")
    def _possible_together(self) -> DemonstrationsWarmStart:
        if self.swapped_notes + self.reshuffled_notes > 1.0:
            raise ValueError(
                f"swapped_notes: {self.swapped_notes:g} and reshuffled_notes: {self.reshuffled_notes:g}: "
                "allowed is a sum of at most 1, since they are shares of the same notes"
            )
        if not self.first_attempts + self.noted_attempts + self.reflections:
            raise ValueError("first_attempts, noted_attempts and reflections: one of them has to be above 0")
        return self


class MessagesWarmStart(WarmStartSteps):
    """Your own conversations; the policy is trained on what the assistant says in them."""

    type: Literal["messages"]
    file: str = Field(min_length=1)
    """A file of JSON lines `{"messages": [{"role", "content"}, ...]}`. Each needs a turn of the assistant
    after another message."""
    held_out: float = Field(default=0.05, ge=0.0, lt=1.0)
    """Share of the conversations that are not trained on; their loss is measured before and after."""


WarmStartConfig = Annotated[DemonstrationsWarmStart | MessagesWarmStart, Field(discriminator="type")]
PretrainedPolicyConfig.model_rebuild()
