"""Settings of a simulated cluster: its nodes, and assumptions about stages; read from a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator

from erl_pipeline.config.base import Settings
from erl_pipeline.config.loading.explain import explain, parse_yaml
from storage.errors import ConfigError

Work = Literal["generation", "training", "other"]
"""What a stage computes: `generation` samples from a model, `training` makes a checkpoint."""

ALL_WORK: tuple[Work, ...] = ("generation", "training", "other")


class NodeGroup(Settings):
    """Nodes that are alike."""

    count: int = Field(default=1, ge=1, le=100_000)
    """How many nodes."""
    devices: int = Field(default=1, ge=0, le=1024)
    """Devices of each node, on which models run."""
    workers: int | None = Field(default=None, ge=1)
    """Stages that a node computes at the same time; null: one for each device, and one more that needs no
    device."""
    computes: tuple[Work, ...] = ALL_WORK
    """What is computed here. `pipeline.lag` saves time if some nodes generate while others train."""
    generation_tokens_per_second: float | None = Field(default=None, gt=0.0)
    """Tokens per second that a device generates; null: as measured, times `speed`."""
    training_tokens_per_second: float | None = Field(default=None, gt=0.0)
    """Tokens per second that a device trains on, forward and backward; null: as measured, times `speed`."""
    speed: float = Field(default=1.0, gt=0.0)
    """How many times as fast as the machine where stages were measured; used where no rate is given."""
    overhead_seconds: float | None = Field(default=None, ge=0.0)
    """What each stage takes besides its computing, such as for its line in the ledger; null: as measured."""
    start_seconds: float = Field(default=0.0, ge=0.0)
    """What a worker needs before its first stage, such as for imports and loading a model."""
    download_bytes_per_second: float | None = Field(default=None, gt=0.0)
    """Bandwidth from the store to a node; null: the store is on the node, and nothing is moved."""
    upload_bytes_per_second: float | None = Field(default=None, gt=0.0)
    """Bandwidth from a node to the store; null: the store is on the node, and nothing is moved."""
    between_bytes_per_second: float | None = Field(default=None, gt=0.0)
    """Bandwidth from another node that has the artifact, which is then used instead of the store; null:
    artifacts always come from the store."""

    @field_validator("computes")
    @classmethod
    def _something(cls, value: tuple[Work, ...]) -> tuple[Work, ...]:
        if not value:
            raise ValueError(f"names nothing; allowed are {', '.join(ALL_WORK)}")
        return value

    @property
    def slots(self) -> int:
        """How many stages a node computes at the same time."""
        return self.devices + 1 if self.workers is None else self.workers


class StageAssumption(Settings):
    """What is assumed of every artifact of a stage, if nothing was measured or in place of it."""

    tokens: float | None = Field(default=None, ge=0.0)
    """Tokens that it generates or trains on; null: as measured."""
    seconds: float | None = Field(default=None, ge=0.0)
    """Seconds on one device of a node with speed 1; used where the node gives no rate of tokens; null: as
    measured."""
    bytes: float | None = Field(default=None, ge=0.0)
    """Size of the artifact; null: as measured."""
    devices: int | None = Field(default=None, ge=1)
    """Devices that it needs at the same time; null: one, if the stage needs any."""
    efficiency: float = Field(default=1.0, gt=0.0, le=1.0)
    """The share of its rate that each device keeps when so many work together."""


class ClusterConfig(Settings):
    """A cluster to simulate."""

    nodes: dict[str, NodeGroup]
    """Name of a group of nodes -> what they are."""
    stages: dict[str, StageAssumption] = Field(default_factory=dict)
    """Name of a stage -> what is assumed of its artifacts."""

    @field_validator("nodes")
    @classmethod
    def _some(cls, value: dict[str, NodeGroup]) -> dict[str, NodeGroup]:
        if not value:
            raise ValueError("there are none; name a group of them, such as trainers: {devices: 8}")
        return value


def read_cluster(path: Path) -> ClusterConfig:
    """Read a cluster from a file.

    Raises ConfigError, which lists all problems, for a file that cannot be read, is not YAML, or has settings
    that are unknown or wrong.
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
