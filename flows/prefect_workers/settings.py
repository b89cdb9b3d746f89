"""Settings of the runner `prefect_workers`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.network import Address
from flows.stage_tasks import TaskOptions


class PrefectWorkersConfig(PluginSettings):
    """Stages are computed by flow runs that Prefect's workers start on their machines, each as a task
    that Prefect runs. Needs a Prefect server that every machine reaches (`PREFECT_API_URL`), and a store that
    every machine reaches."""

    type: Literal["prefect_workers"] = "prefect_workers"
    work_pool: str = Field(min_length=1)
    """Work pool of type `process`, from which workers on other machines take flow runs."""
    device_work_pool: str | None = Field(default=None, min_length=1)
    """Work pool of the machines with devices, for the first `resources.devices` workers. Unset: all are of
    `work_pool`."""
    workers: int = Field(default=1, ge=1, le=1024)
    """Most stages that are computed at the same time; the plan and `resources.devices` may allow fewer. Each
    worker keeps its models and servers until the run ends."""
    address: str
    """`HOST:PORT` at which this machine listens, and at which the workers' machines reach it. With port 0, a
    free port is taken."""
    stages: dict[str, TaskOptions] = Field(default_factory=dict)
    """What Prefect does with the tasks of a stage, by its name: timeout, retries and tags."""
    start_seconds: float = Field(default=60, gt=0, le=86400)
    """Seconds until all workers must have begun. By default a Prefect worker looks for work every 10 s."""

    @field_validator("address")
    @classmethod
    def _known_form(cls, address: str) -> str:
        Address.parse(address)
        return address
