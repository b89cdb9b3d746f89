"""Settings of the warm start: supervised training of a pretrained policy before the first iteration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from erl_pipeline.config.optimizer import MicrobatchConfig


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
