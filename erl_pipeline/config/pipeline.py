"""Settings of how the stages of a run follow each other, and of what they compute on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from erl_pipeline.config.base import Settings


class PipelineConfig(Settings):
    """The order of the stages; part of the plan, so part of what artifacts are made from."""

    lag: int = Field(default=0, ge=0, le=16)
    """Iteration i samples from the checkpoint of iteration i - 1 - lag, so that rollouts and training can go
    on at the same time on two devices. More than 0 needs `objective.correction: {type: decoupled}`: the
    update then weighs each token by how likely the policy at hand makes it. The bytes are those of the plan,
    however its stages overlap."""


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
