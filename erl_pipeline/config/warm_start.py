"""Settings of the warm start: supervised training of a pretrained policy before the first iteration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from erl_pipeline.config.optimizer import MicrobatchConfig


class WarmStartSteps(MicrobatchConfig):
    """The steps of a warm start: AdamW, whose learning rate rises, stays, and falls."""

    steps: int = Field(default=170, ge=1)
    """Optimizer steps."""
    batch: int = Field(default=16, ge=1)
    """Conversations in one step."""
    learning_rate: float = Field(default=3e-4, gt=0.0)
    """Peak learning rate."""
    warm_up_steps: int = Field(default=20, ge=0)
    """Steps in which the learning rate rises to its peak, evenly."""
    decay_from: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of the steps after which the learning rate falls, evenly; 1: it never does."""
    final_rate: float = Field(default=0.05, ge=0.0, le=1.0)
    """What the learning rate falls to at the last step, as a share of its peak."""
    seed: int = Field(default=0, ge=0)
    """Chooses the demonstrations and the order of conversations. Runs with other seeds share the warm
    start."""

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 1."""
        rise = min(1.0, step / (self.warm_up_steps + 1))
        peak = self.decay_from * self.steps
        fallen = max(0.0, step - peak) / (self.steps - peak) if peak < self.steps else 0.0
        return self.learning_rate * min(rise, 1.0 - (1.0 - self.final_rate) * fallen)


class DemonstrationsWarmStart(WarmStartSteps):
    """Scripted demonstrations of the environment, each in a world of its own, so that no world is learned."""

    type: Literal["demonstrations"]
    first_attempts: int = Field(default=3, ge=0)
    """Of so many parts of all demonstrations; the parts are `first_attempts + noted_attempts +
    reflections`."""
    noted_attempts: int = Field(default=4, ge=0)
    """Parts that are attempts with notes of an earlier attempt."""
    reflections: int = Field(default=3, ge=0)
    """Parts that are reflections on an attempt that failed."""
    swapped_notes: float = Field(default=0.3, ge=0.0, le=1.0)
    """Share of notes and memories with two action words swapped, so that the policy does not trust them
    blindly."""
    reshuffled_notes: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of notes and memories whose action words are in any order at all."""
    memories: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of reflections that see a memory."""
    examined: int = Field(default=96, ge=0)
    """Held-out tasks on which the policy is examined afterwards, by its most probable answers."""

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
    """Conversations of one's own; what the assistant says in them is trained."""

    type: Literal["messages"]
    file: str = Field(min_length=1)
    """JSON lines of `{"messages": [{"role", "content"}, ...]}`, each with a turn of the assistant after
    another message."""
    held_out: float = Field(default=0.05, ge=0.0, lt=1.0)
    """Share of the conversations that is not trained; their loss is measured before and after."""


WarmStartConfig = Annotated[DemonstrationsWarmStart | MessagesWarmStart, Field(discriminator="type")]
