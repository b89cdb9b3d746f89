"""Settings of the episodes from which a policy learns, and of those that evaluate it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from erl_pipeline.config.base import Settings
from erl_pipeline.config.selection import SelectionConfig, UniformSelection

Failed = Literal["drop", "zero", "retry"]

_RETRIES = 2


class EpisodeConfig(Settings):
    """One iteration's episodes, without the choice of their tasks."""

    tasks_per_iteration: int = Field(default=16, ge=1)
    """Tasks drawn from the training set in each iteration, without replacement until all were drawn."""
    group_size: int = Field(default=8, ge=1)
    """Episodes of each task; their rewards are compared to give advantages (GRPO)."""
    success_threshold: float = Field(default=1.0, gt=0.0)
    """An attempt succeeds if its reward is at least this; a method retries only the others (the gate)."""
    step_seconds: float = Field(default=60.0, gt=0.0)
    """Deadline for each call of an environment. A call that misses it ends the attempt, which then has failed
    (see `failed`)."""
    failed: Failed = "drop"
    """What becomes of an attempt that the environment or its scorer failed, by an exception or a missed
    deadline. `drop`: its row is kept, with the reason, and left out of everything that is learned, compared,
    remembered or counted in a rate; so is the reflection that led to it. `zero`: where the environment failed
    it counts as an attempt of reward 0, and is trained so; what a scorer could not score is still dropped.
    `retry`: it is played again from its beginning, with the same seeds, in a new environment. As long as
    the environment answers the same, the policy's turns are those that it had sampled, so that a failure
    that does not happen again leaves no trace in the row. What fails each time is dropped."""
    retries: int = Field(default=_RETRIES, ge=1, le=10)
    """With `failed: retry`: how often an attempt is played again, at most."""
    tasks_per_shard: int = Field(default=16, ge=1)
    """Tasks in one shard. A shard is generated as a whole and committed, and is not generated again after an
    interruption."""

    @model_validator(mode="after")
    def _retries_only_where_asked_for(self) -> Self:
        if self.failed != "retry" and self.retries != _RETRIES:
            raise ValueError(f"retries: {self.retries}; it is only for failed: retry, not {self.failed}")
        return self

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
