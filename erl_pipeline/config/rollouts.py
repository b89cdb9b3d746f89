"""Settings of the episodes from which a policy learns, and of those that evaluate it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from erl_pipeline.config.base import Settings, switch
from erl_pipeline.config.selection import SelectionConfig, UniformSelection
from erl_pipeline.config.stream import StreamConfig


class EpisodeConfig(Settings):
    """One iteration's episodes, without the choice of their tasks."""

    tasks_per_iteration: int = Field(default=16, ge=1)
    """Tasks drawn from the training set in each iteration, without replacement until all were drawn."""
    group_size: int = Field(default=8, ge=1)
    """Episodes of each task; their rewards are compared to give advantages (GRPO)."""
    success_threshold: float = Field(default=1.0, gt=0.0)
    """An attempt succeeds if its reward is at least this; a method retries only the others (the gate)."""
    step_seconds: float = Field(default=60.0, gt=0.0)
    """Deadline for each call of an environment. A call that misses it ends the episode with reward 0."""
    tasks_per_shard: int = Field(default=16, ge=1)
    """Tasks in one shard. A shard is generated as a whole and committed, and is not generated again after an
    interruption."""

    @property
    def shards(self) -> int:
        """Number of shards in one iteration."""
        return -(-self.tasks_per_iteration // self.tasks_per_shard)


class RolloutConfig(EpisodeConfig):
    """One iteration's episodes, and how their tasks are chosen."""

    selection: SelectionConfig = UniformSelection()
    """Which tasks an iteration draws: `uniform`, `by_difficulty` (mostly tasks that are solved sometimes) or
    `easy_to_hard`."""


class EvaluationConfig(Settings):
    """First attempts on held-out tasks, without memory, feedback or reflection in the prompt."""

    every: int = Field(default=1, ge=1)
    """Iterations between evaluations. There is always one before the first and one after the last."""
    tasks: int = Field(default=256, ge=1, le=100_000)
    """Number of held-out tasks."""
    samples_per_task: int = Field(default=0, ge=0, le=64)
    """Sampled attempts at each task besides the greedy one; 0: none."""
    whole_episodes: bool = False
    """After a failed greedy attempt, also go on as the method does in training: once without memory and, if
    the method has a memory, once with it. The success of both is reported."""
    stream: Annotated[StreamConfig | None, BeforeValidator(switch)] = None
    """Before the first iteration and after the last, also play streams of tasks in held-out realms, with and
    without notes. This needs an environment with such realms (FrozenLake: `actions: realms`)."""
