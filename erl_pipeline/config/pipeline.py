"""Settings of the order of a run's stages, and of the resources that they use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from erl_pipeline.config.base import Settings


class PipelineConfig(Settings):
    """The order of the stages. It is part of the plan, so artifacts depend on it."""

    lag: int = Field(default=0, ge=0, le=16)
    """Iteration i samples from the checkpoint of iteration i - 1 - lag, so that rollouts and training can run
    at the same time on two devices. More than 0 needs `objective.correction: {type: decoupled}`, which
    weights each token by how likely it is under the current policy. The bytes do not depend on which stages
    run at the same time."""
    max_age: int | None = Field(default=None, ge=0)
    """The largest age of a trajectory in a reinforcement-learning update; `null`: no limit. The age is how
    many iterations the policy that sampled it is behind the policy that is updated. Fresh trajectories have
    the age `lag`, so the lag may not be larger. For replay (ExGRPO) too, the age is that of the policy that
    sampled: in the update of iteration i, an attempt of iteration s has the age i - s + lag, or less in the
    first iterations. If the current policy was not trained from the one that sampled, such as that of another
    run, the trajectory counts as too old. The limit does not apply to supervised stages and to the training
    of an extractor."""
    too_old: Literal["wait", "drop"] = "wait"
    """How `max_age` is enforced. `wait`: by the plan. Rollouts wait for a policy that is young enough. A run
    whose updates could get older trajectories is refused; with replay, that is the case if
    `method.replay.max_age` plus the lag is more than `max_age`. `drop`: by the update. It leaves out what is
    too old before rewards are compared; the training record says `too_old`, and `dropped_too_old` counts
    them. Use this for replay and for stored rollouts (`replay --offline`), whose age cannot change."""

    @model_validator(mode="after")
    def _possible_together(self) -> PipelineConfig:
        if self.max_age is None:
            if self.too_old == "drop":
                raise ValueError("too_old: drop; it needs max_age, since without one nothing is too old")
        elif self.lag > self.max_age:
            raise ValueError(
                f"lag: {self.lag}; allowed with max_age: {self.max_age} is at most {self.max_age}, since no "
                f"fresh trajectory would be young enough from iteration {self.max_age + 2} on; lower "
                "pipeline.lag, or raise pipeline.max_age"
            )
        return self


@dataclass(frozen=True)
class NodesToFind:
    """How many machines a training needs besides the one that computes its stage, and how many of the
    trainer's processes are on each machine."""

    count: int
    processes: int


class ResourcesConfig(Settings):
    """The resources that a run may use. No artifact's id depends on them, and a run can be continued with
    others, but bytes depend on `threads`."""

    threads: int = Field(default=2, ge=1, le=256)
    """CPU threads of torch in each process. Bytes are reproducible for a fixed number of threads."""
    devices: int = Field(default=1, ge=1, le=64)
    """How many stages may compute with a model at the same time, each on its own device. On a machine without
    GPU the processor counts as one device; with more, they share its cores."""
    full_disk: Literal["refuse", "warn"] = "refuse"
    """What happens if the next iteration is expected to need more space than is free in the store's folder.
    `refuse`: the run stops before it, so that nothing is lost, and the same command continues it once there
    is room. `warn`: it goes on. The expected size is what the stages took before, or is computed from the
    model's size."""
