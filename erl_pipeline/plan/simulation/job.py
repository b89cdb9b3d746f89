"""What a simulation knows of a stage: what it needs, what it makes, and how long it takes on which node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from erl_pipeline.plan.plan import Plan, PlannedStage
from erl_pipeline.plan.simulation.cluster import ALL_WORK, ClusterConfig, NodeGroup, StageAssumption, Work
from storage.artifacts.recipe import ArtifactKind
from storage.errors import ConfigError
from storage.wording import counted

_WORK: Mapping[ArtifactKind, Work] = {
    "trajectories": "generation",
    "evaluation": "generation",
    "checkpoint": "training",
}


@dataclass(frozen=True)
class Measured:
    """What an artifact took before: seconds, tokens that were generated or trained on, bytes. A number is
    None if it is not known, or if a stage has no tokens."""

    seconds: float | None = None
    tokens: float | None = None
    bytes: float | None = None


@dataclass(frozen=True)
class Job:
    """A stage to simulate. `devices` is 0 if it needs none; `seconds` are on one device of speed 1."""

    title: str
    stage: str
    artifact_id: str
    inputs: tuple[str, ...]
    work: Work
    devices: int
    seconds: float | None
    tokens: float | None
    bytes: float
    efficiency: float = 1.0
    part: bool = False
    """Whether it is one of several that make one thing, such as a shard of the rollouts."""

    def seconds_on(self, group: NodeGroup) -> float | None:
        """How long it computes on a node of a group, on as many devices as it needs; None if that is not
        known."""
        rate = self.rate_on(group)
        together = max(self.devices, 1) * self.efficiency
        if rate is not None and self.tokens is not None:
            return self.tokens / (rate * together)
        return None if self.seconds is None else self.seconds / (group.speed * together)

    def rate_on(self, group: NodeGroup) -> float | None:
        """Tokens per second on a device of a group; None if the group does not say."""
        return {
            "generation": group.generation_tokens_per_second,
            "training": group.training_tokens_per_second,
            "other": None,
        }[self.work]


def jobs_of(plan: Plan, cluster: ClusterConfig, measured: Mapping[str, Measured]) -> list[Job]:
    """The jobs of a plan, in its order.

    Args:
        measured: artifact id -> what a similar artifact took.

    Raises ConfigError, which names stage, node and setting, for stages that no node can compute or of which
    too little is known, and for assumptions about stages that are not in the plan.
    """
    names = list(dict.fromkeys(node.stage.name for node in plan.nodes))
    unknown = [name for name in cluster.stages if name not in names]
    if unknown:
        raise ConfigError(f"stages.{unknown[0]}: the plan has no such stage; it has {', '.join(names)}")
    jobs = [
        _job(node, cluster.stages.get(node.stage.name, StageAssumption()), measured[node.artifact_id])
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
    if node.stage.needs != "device":
        return "other"
    return _WORK.get(node.stage.output, "other")


def _job(node: PlannedStage, assumed: StageAssumption, measured: Measured) -> Job:
    needs_device = node.stage.needs == "device"
    size = measured.bytes if assumed.bytes is None else assumed.bytes
    return Job(
        title=node.title,
        stage=node.stage.name,
        artifact_id=node.artifact_id,
        inputs=tuple(dict.fromkeys(node.recipe.inputs.values())),
        work=work_of(node),
        devices=(assumed.devices or 1) if needs_device else 0,
        seconds=measured.seconds if assumed.seconds is None else assumed.seconds,
        tokens=measured.tokens if assumed.tokens is None else assumed.tokens,
        bytes=size or 0.0,
        efficiency=assumed.efficiency,
        part=bool(node.stage.part_of),
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
