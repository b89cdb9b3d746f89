"""Settings of how the stages of a run follow each other, and of what they compute on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from erl_pipeline.config.base import Settings


class PipelineConfig(Settings):
    """The order of the stages; part of the plan, so part of what artifacts are made from."""

    lag: int = Field(default=0, ge=0, le=16)
    """Iteration i samples from the checkpoint of iteration i - 1 - lag, so that rollouts and training can go
    on at the same time on two devices. More than 0 needs `objective.correction: {type: decoupled}`: the
    update then weighs each token by how likely the policy at hand makes it. The bytes are those of the plan,
    however its stages overlap."""
    max_age: int | None = Field(default=None, ge=0)
    """Most iterations that the policy which sampled a trajectory may be behind the policy that an update by
    reinforcement learning is about to change; `null` for any. Fresh trajectories are `lag` behind, so that
    the lag may not be more. What is replayed (ExGRPO) has the age of the policy that sampled it, not of its
    drawing: in the update of iteration i an attempt of iteration s is i - s + lag behind, in the first
    iterations less. A policy that the one at hand was not trained from, such as that of another run, counts
    as too old. The supervised stages and what trains an extractor are not held to it."""
    too_old: Literal["wait", "drop"] = "wait"
    """What keeps to `max_age`. `wait`: the plan does. Rollouts wait for a policy that is young enough, and a
    run whose updates could be given an older trajectory is refused: with replay, where
    `method.replay.max_age` and the lag are more together. `drop`: the update does. It leaves out what is too
    old before rewards are compared; the training record says `too_old`, and `dropped_too_old` counts. This
    is for replay and for stored rollouts (`replay --offline`), which are as old as they are."""

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


class ResourcesConfig(Settings):
    """What a run may keep busy; no artifact's id depends on it. A run can be continued with others, but
    for the bytes of `threads`."""

    threads: int = Field(default=2, ge=1, le=256)
    """CPU threads of torch in each process. Bytes are reproducible for a fixed number of threads."""
    devices: int = Field(default=1, ge=1, le=64)
    """Stages that may compute with a model at the same time, each on a device of its own. A machine without
    GPU counts its processor as one; with more, its cores are shared."""
    full_disk: Literal["refuse", "warn"] = "refuse"
    """What is done where the next iteration is expected to take more than is free at a store that is a
    folder: `refuse` stops before it, so that nothing is lost and the same command goes on once there is room.
    What is expected is what the stages took before, or follows from the model's size."""
