"""Settings of a simulated cluster: its nodes, and what is assumed of stages; read from a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator

from erl_pipeline.config.base import Settings
from erl_pipeline.config.loading.explain import explain
from erl_pipeline.config.loading.yaml_values import parse_yaml
from storage.errors import ConfigError

Work = Literal["generation", "training", "other"]
"""What a stage computes: `generation` samples from a model, `training` makes a checkpoint."""

ALL_WORK: tuple[Work, ...] = ("generation", "training", "other")


class NodeGroup(Settings):
    """Nodes that are alike."""

    count: int = Field(default=1, ge=1, le=100_000)
    """How many."""
    devices: int = Field(default=1, ge=0, le=1024)
    """Devices of each node, on which models run."""
    workers: int | None = Field(default=None, ge=1)
    """Stages that a node computes at the same time; null: one for each device and one that needs none."""
    computes: tuple[Work, ...] = ALL_WORK
    """What is computed here. Generation on some nodes and training on others is how lag pays."""
    generation_tokens_per_second: float | None = Field(default=None, gt=0.0)
    """Tokens that a device generates; null: as fast as what was measured, times `speed`."""
    training_tokens_per_second: float | None = Field(default=None, gt=0.0)
    """Tokens that a device trains on, forward and backward; null: as fast as what was measured, times
    `speed`."""
    speed: float = Field(default=1.0, gt=0.0)
    """How many times as fast as the machine where stages were measured, where no rate is given."""
    overhead_seconds: float | None = Field(default=None, ge=0.0)
    """What each stage takes beside its computing, such as its line in the ledger; null: as measured."""
    start_seconds: float = Field(default=0.0, ge=0.0)
    """What a worker takes before its first stage, such as imports and loading a model."""
    download_bytes_per_second: float | None = Field(default=None, gt=0.0)
    """From the store to a node; null: the store is on the node, and nothing is moved."""
    upload_bytes_per_second: float | None = Field(default=None, gt=0.0)
    """From a node to the store; null: the store is on the node, and nothing is moved."""
    between_bytes_per_second: float | None = Field(default=None, gt=0.0)
    """From another node that has the artifact, instead of from the store; null: always from the store."""

    @field_validator("computes")
    @classmethod
    def _something(cls, value: tuple[Work, ...]) -> tuple[Work, ...]:
        if not value:
            raise ValueError(f"names nothing; allowed are {', '.join(ALL_WORK)}")
        return value

    @property
    def slots(self) -> int:
        """Stages at the same time on a node."""
        return self.devices + 1 if self.workers is None else self.workers


class StageAssumption(Settings):
    """What is assumed of every artifact of a stage, where nothing was measured or it is to be another."""

    tokens: float | None = Field(default=None, ge=0.0)
    """Tokens that it generates or trains on; null: as measured."""
    seconds: float | None = Field(default=None, ge=0.0)
    """On one device of a node with speed 1, where the node gives no rate of tokens; null: as measured."""
    bytes: float | None = Field(default=None, ge=0.0)
    """Size of the artifact; null: as measured."""
    devices: int | None = Field(default=None, ge=1)
    """Devices that it needs together; null: one, where the stage needs any."""
    efficiency: float = Field(default=1.0, gt=0.0, le=1.0)
    """How much of a device's rate is left with so many together."""


class ClusterConfig(Settings):
    """A cluster to simulate."""

    nodes: dict[str, NodeGroup]
    """Name of a group of nodes -> what they are."""
    stages: dict[str, StageAssumption] = Field(default_factory=dict)
    """Name of a stage -> what is assumed of it."""

    @field_validator("nodes")
    @classmethod
    def _some(cls, value: dict[str, NodeGroup]) -> dict[str, NodeGroup]:
        if not value:
            raise ValueError("there are none; name a group of them, such as trainers: {devices: 8}")
        return value


def read_cluster(path: Path) -> ClusterConfig:
    """The cluster of a file.

    Raises ConfigError, with all problems at once, for a file that cannot be read, is not YAML, or has
    settings that are unknown or wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; examples are in configs/clusters/") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    document = parse_yaml(text, str(path))
    try:
        return ClusterConfig.model_validate(document.value)
    except ValidationError as error:
        lines = {key: f"line {line}" for key, line in document.lines.items()}
        problems = explain(error, ClusterConfig, lines)
        raise ConfigError("\n  ".join([f"{path}:", *problems])) from error
