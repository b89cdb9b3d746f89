"""A cluster that a run is simulated on, and what the simulation knows of each stage: what it needs, what it
makes, and how long it takes on which node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from erl_pipeline.config.base import Settings
from erl_pipeline.config.loading import load_settings
from erl_pipeline.plan.forecast import Cost
from erl_pipeline.plan.plan import Plan, PlannedStage
from erl_pipeline.plan.repetition import without_state
from erl_pipeline.policies.checkpoints import CHECKPOINT
from storage.artifacts.recipe import ArtifactKind
from storage.errors import ConfigError
from storage.texts import counted

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
    computes: tuple[Work, ...] = Field(default=ALL_WORK, min_length=1)
    """What is computed here. `pipeline.lag` saves time if some nodes generate while others train."""
    generation_tokens_per_second: float | None = Field(default=None, gt=0.0)
    """Tokens per second that a device generates; null: as measured, times `speed`."""
    training_tokens_per_second: float | None = Field(default=None, gt=0.0)
    """Tokens per second that a device trains on, forward and backward; null: as measured, times `speed`."""
    scoring_tokens_per_second: float | None = Field(default=None, gt=0.0)
    """Tokens per second that a device scores, forward only, before it trains on them (`scored_tokens`)."""
    speed: float = Field(default=1.0, gt=0.0)
    """How many times as fast as the machine where stages were measured; used where no rate is given."""
    overhead_seconds: float | None = Field(default=None, ge=0.0)
    """What each stage takes besides its computing, such as for its line in the ledger; null: as measured."""
    start_seconds: float = Field(default=0.0, ge=0.0)
    """What a worker needs before its first stage, such as for imports and loading a model."""
    trainer_start_seconds: float = Field(default=0.0, ge=0.0)
    """What a training needs before it computes: to start its processes, and to read weights and the state of
    the optimizer."""
    trainer_wake_seconds: float | None = Field(default=None, ge=0.0)
    """What a training needs instead, where the processes of an earlier one have stayed on the node; null:
    they end with each training."""
    handover_bytes_per_second: float | None = Field(default=None, gt=0.0)
    """Bytes of weights per second on their way into what samples on a node, with their proof; null: no time.
    Its first stage with another checkpoint takes it."""
    write_bytes_per_second: float | None = Field(default=None, gt=0.0)
    """At which a stage puts its artifact together and writes it; null: no time."""
    state_bytes_per_second: float | None = Field(default=None, gt=0.0)
    """At which a training copies the state of the optimizer into host memory, from where it is written beside
    the next stages, before it is hashed; null: the stage writes it."""
    commit_bytes_per_second: float | None = Field(default=None, gt=0.0)
    """At which artifacts are hashed and flushed beside the next stages, one after the other; null: no time.
    A training waits while two checkpoints are not committed."""
    download_bytes_per_second: float | None = Field(default=None, gt=0.0)
    """Bandwidth from the store to a node; null: the store is on the node, and nothing is moved."""
    upload_bytes_per_second: float | None = Field(default=None, gt=0.0)
    """Bandwidth from a node to the store; null: the store is on the node, and nothing is moved."""
    between_bytes_per_second: float | None = Field(default=None, gt=0.0)
    """Bandwidth from another node that has the artifact, which is then used instead of the store; null:
    artifacts always come from the store."""

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
    scored_tokens: float = Field(default=0.0, ge=0.0)
    """Tokens whose probabilities are computed before the training; each pass over them counts."""
    bytes: float | None = Field(default=None, ge=0.0)
    """Size of the artifact; null: as measured."""
    state_bytes: float = Field(default=0.0, ge=0.0)
    """Size of the optimizer's state, which checkpoints have in addition where `retention.optimizer_every`
    asks for it."""
    devices: int | None = Field(default=None, ge=1)
    """Devices that it needs at the same time; null: one, if the stage needs any."""
    efficiency: float = Field(default=1.0, gt=0.0, le=1.0)
    """The share of its rate that each device keeps when so many work together."""


class ClusterConfig(Settings):
    """A cluster to simulate."""

    nodes: dict[str, NodeGroup] = Field(min_length=1)
    """Name of a group of nodes -> what they are."""
    stages: dict[str, StageAssumption] = Field(default_factory=dict)
    """Name of a stage -> what is assumed of its artifacts."""


def read_cluster(path: Path) -> ClusterConfig:
    """Read a cluster from a file. Raises ConfigError as `load_settings` does."""
    return load_settings(path, ClusterConfig, "ready clusters are in configs/clusters/")


_WORK: Mapping[ArtifactKind, Work] = {
    "trajectories": "generation",
    "evaluation": "generation",
    "checkpoint": "training",
}


@dataclass(frozen=True)
class Job:
    """A stage to simulate. `devices` is 0 if it needs none; `seconds` are on one device of speed 1."""

    planned: PlannedStage
    work: Work
    devices: int
    seconds: float | None
    tokens: float | None
    bytes: float
    efficiency: float = 1.0
    scored_tokens: float = 0.0
    state_bytes: float = 0.0

    @property
    def stage(self) -> str:
        """The name of its stage."""
        return self.planned.stage.name

    @property
    def artifact_id(self) -> str:
        """The id of what it makes."""
        return self.planned.artifact_id

    @property
    def inputs(self) -> tuple[str, ...]:
        """The ids of the artifacts that it reads, each once."""
        return tuple(dict.fromkeys(self.planned.recipe.inputs.values()))

    @property
    def checkpoint(self) -> str:
        """The id of the checkpoint that it samples from or trains; empty for none."""
        return self.planned.recipe.inputs.get(CHECKPOINT, "")

    @property
    def part(self) -> bool:
        """Whether it is one of several that make one thing, such as a shard of the rollouts."""
        return bool(self.planned.stage.part_of)

    def seconds_on(self, group: NodeGroup) -> float | None:
        """How long it computes on a node of a group, on as many devices as it needs; None if that is not
        known."""
        rate = self.rate_on(group)
        together = max(self.devices, 1) * self.efficiency
        if rate is not None and self.tokens is not None:
            return self.tokens / (rate * together)
        return None if self.seconds is None else self.seconds / (group.speed * together)

    def scoring_on(self, group: NodeGroup) -> float:
        """Seconds in which it scores what it trains on; 0 if the group gives no rate."""
        rate = group.scoring_tokens_per_second
        return 0.0 if rate is None else self.scored_tokens / (rate * max(self.devices, 1) * self.efficiency)

    def rate_on(self, group: NodeGroup) -> float | None:
        """Tokens per second on a device of a group; None if the group does not say."""
        return {
            "generation": group.generation_tokens_per_second,
            "training": group.training_tokens_per_second,
            "other": None,
        }[self.work]


def jobs_of(
    plan: Plan, cluster: ClusterConfig, measured: Mapping[str, Cost], state_every: int = 1
) -> list[Job]:
    """The jobs of a plan, in its order.

    Args:
        measured: artifact id -> what a similar artifact took; its tokens were generated or trained on.
        state_every: the state of the optimizer is committed each so many iterations.

    Raises ConfigError, which names stage, node and setting, for stages that no node can compute or of which
    too little is known, and for assumptions about stages that are not in the plan.
    """
    names = list(dict.fromkeys(node.stage.name for node in plan.nodes))
    unknown = [name for name in cluster.stages if name not in names]
    if unknown:
        raise ConfigError(f"stages.{unknown[0]}: the plan has no such stage; it has {', '.join(names)}")
    lacking = without_state(plan, state_every)
    jobs = [
        _job(
            node,
            cluster.stages.get(node.stage.name, StageAssumption()),
            measured[node.artifact_id],
            node.artifact_id not in lacking,
        )
        for node in plan.by_id.values()
    ]
    for job in {job.stage: job for job in jobs}.values():
        _require_a_place(job, cluster)
    _require_known(jobs, cluster)
    return jobs


def split_parts(jobs: Sequence[Job], factor: float) -> list[Job]:
    """The same jobs, but those that are parts, such as shards, are `factor` times as large."""

    def times(value: float | None) -> float | None:
        return None if value is None else value * factor

    return [
        replace(job, seconds=times(job.seconds), tokens=times(job.tokens), bytes=job.bytes * factor)
        if job.part
        else job
        for job in jobs
    ]


def work_of(node: PlannedStage) -> Work:
    """The kind of work that a stage does."""
    if node.stage.needs == "processor":
        return "other"
    return _WORK.get(node.stage.output, "other")


def _job(node: PlannedStage, assumed: StageAssumption, measured: Cost, has_state: bool) -> Job:
    needs_device = node.stage.needs != "processor"
    size = measured.bytes if assumed.bytes is None else assumed.bytes
    return Job(
        planned=node,
        work=work_of(node),
        devices=(assumed.devices or 1) if needs_device else 0,
        seconds=measured.seconds if assumed.seconds is None else assumed.seconds,
        tokens=measured.tokens if assumed.tokens is None else assumed.tokens,
        bytes=size or 0.0,
        efficiency=assumed.efficiency,
        scored_tokens=assumed.scored_tokens,
        state_bytes=assumed.state_bytes if has_state else 0.0,
    )


def _require_a_place(job: Job, cluster: ClusterConfig) -> None:
    able = {name: group for name, group in cluster.nodes.items() if job.work in group.computes}
    if not able:
        raise ConfigError(
            f"no node computes {job.work}, the work of {job.stage}; add it to "
            f"nodes.{next(iter(cluster.nodes))}.computes (allowed are {', '.join(ALL_WORK)})"
        )
    most = max(able, key=lambda name: able[name].count * able[name].devices)
    have = able[most].count * able[most].devices
    if job.devices > have:
        where = (
            f"stages.{job.stage}.devices: {job.devices}" if job.devices > 1 else f"{job.stage} needs a device"
        )
        raise ConfigError(
            f"{where}, but nodes.{most}, the largest group that computes {job.work}, has {have} "
            f"({able[most].count} x {able[most].devices})"
        )


def _require_known(jobs: Sequence[Job], cluster: ClusterConfig) -> None:
    """Raise ConfigError if it is not known how long a stage takes; it names all such stages."""
    unknown: dict[str, str] = {}
    for job in jobs:
        for name, group in cluster.nodes.items():
            if job.work in group.computes and job.seconds_on(group) is None:
                setting = "seconds" if job.rate_on(group) is None else "tokens"
                unknown[f"stages.{job.stage}.{setting}"] = name
    if unknown:
        places = ", ".join(dict.fromkeys(f"nodes.{name}" for name in unknown.values()))
        raise ConfigError(
            f"it is not known how long {counted(len(unknown), 'stage')} take on {places}, since no run "
            f"that trains this model has an artifact of them; set {', '.join(unknown)}"
        )
