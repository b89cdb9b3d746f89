"""Settings of the episodes: those that a policy learns from, and those that measure it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from erl_pipeline.config.base import Settings, switch
from erl_pipeline.config.selection import SelectionConfig, UniformSelection
from erl_pipeline.config.stream import StreamConfig


class EpisodeConfig(Settings):
    """One iteration's episodes, whichever tasks they are of."""

    tasks_per_iteration: int = Field(default=16, ge=1)
    """Tasks drawn from the training set in each iteration, without replacement until all were drawn."""
    group_size: int = Field(default=8, ge=1)
    """Episodes of each task; their rewards are compared to give advantages (GRPO)."""
    success_threshold: float = Field(default=1.0, gt=0.0)
    """An attempt whose reward is at least this succeeded; a method retries only others (the gate)."""
    step_seconds: float = Field(default=60.0, gt=0.0)
    """Deadline of each call of an environment. One that misses it ends its episode, with reward 0."""
    tasks_per_shard: int = Field(default=16, ge=1)
    """Tasks of one shard, the unit that is generated in one go and never generated again."""

    @property
    def shards(self) -> int:
        """Shards of one iteration."""
        return -(-self.tasks_per_iteration // self.tasks_per_shard)


class RolloutConfig(EpisodeConfig):
    """One iteration's episodes, and which tasks they are of."""

    selection: SelectionConfig = UniformSelection()
    """Which tasks an iteration draws: `uniform`, `by_difficulty` (those that are solved now and then) or
    `easy_to_hard`."""


class EvaluationConfig(Settings):
    """First attempts on held-out tasks, without memory, feedback or reflection in the prompt."""

    every: int = Field(default=1, ge=1)
    """Evaluate after every so many iterations, and always before the first and after the last."""
    tasks: int = Field(default=256, ge=1)
    """Held-out tasks."""
    samples_per_task: int = Field(default=0, ge=0, le=64)
    """Sampled attempts of each task beside the greedy one; 0 leaves them out."""
    whole_episodes: bool = False
    """Also play on after a failed greedy attempt as the method does in training, without memory and, where
    the method has one, with it, and report the success of both."""
    stream: Annotated[StreamConfig | None, BeforeValidator(switch)] = None
    """Before the first iteration and after the last also play streams of tasks in held-out realms, with
    notes and without; needs an environment with such realms (FrozenLake: `actions: realms`)."""
