"""Settings of the runner `ray`."""

from typing import Literal

from pydantic import Field, field_validator

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.network import Address
from flows.submissions import TaskOptions


class DeviceStageConfig(Settings):
    """What Ray reserves for each of the `resources.devices` workers that compute with a model, and for each
    other node of the trainer (`trainer.nodes` without `trainer.address`)."""

    gpus: float | None = Field(default=None, ge=0, le=64)
    """GPUs of one node: a whole number, or a fraction below 1. Unset: 1 if the cluster has GPUs, or as
    many as a node has processes of the trainer, else 0. With 0 the worker sees no GPU. Leave it unset with
    `resources.groups`, which says how many GPUs each worker has."""
    cpus: float | None = Field(default=None, gt=0, le=1024)
    """Processor cores. Unset: as many as `resources.threads`."""
    memory_gb: float | None = Field(default=None, gt=0)
    """Memory of the node, in 10^9 bytes. Ray counts it and does not enforce it. Unset: not counted."""

    @field_validator("gpus")
    @classmethod
    def _whole_or_a_part_of_one(cls, gpus: float | None) -> float | None:
        if gpus is not None and gpus > 1 and not gpus.is_integer():
            raise ValueError(f"{gpus:g} GPUs; allowed is a whole number, or a part of one GPU")
        return gpus


class OtherStageConfig(Settings):
    """What Ray reserves for each of the other workers, whose stages need no model."""

    cpus: float = Field(default=1, gt=0, le=1024)
    """Processor cores."""
    memory_gb: float | None = Field(default=None, gt=0)
    """Memory of the node, in 10^9 bytes. Ray counts it and does not enforce it. Unset: not counted."""


class RayConfig(PluginSettings):
    """Stages are computed by workers on the nodes of a Ray cluster, each as a task that Prefect runs.
    Needs the extra `ray`, and a store that every node reaches."""

    type: Literal["ray"] = "ray"
    address: str = "auto"
    """`HOST:PORT` of the cluster's head, as `ray start --head` prints it. `auto`: the address in
    `RAY_ADDRESS`, or that of the cluster to which this machine belongs. `local`: a cluster of this machine
    only, which ends with the command. The command itself has to run on a machine of the cluster."""
    workers: int = Field(default=1, ge=1, le=1024)
    """Most stages that are computed at the same time; the plan, `resources.devices` and `resources.groups`
    may allow fewer. Each worker keeps its models and servers until the run ends."""
    device_stage: DeviceStageConfig = DeviceStageConfig()
    other_stage: OtherStageConfig = OtherStageConfig()
    stages: dict[str, TaskOptions] = Field(default_factory=dict)
    """What Prefect does with the tasks of a stage, by its name: timeout, retries and tags."""
    start_seconds: float = Field(default=10, gt=0, le=3600)
    """Seconds that the cluster may take to reserve what the workers need. Allow some minutes if the cluster
    adds nodes on demand."""

    @field_validator("address")
    @classmethod
    def _known_form(cls, address: str) -> str:
        if address.startswith("ray://"):
            raise ValueError(
                f"{address}; Ray's client is not used: start the command on a machine of the cluster, with "
                "auto or HOST:PORT of the head"
            )
        if address not in ("auto", "local"):
            try:
                Address.parse(address)
            except ValueError as error:
                raise ValueError(
                    f"{address!r}; allowed is auto, local or HOST:PORT, such as 10.0.0.1:6379"
                ) from error
        return address
