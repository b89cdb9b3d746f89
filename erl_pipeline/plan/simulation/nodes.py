"""The state of a simulated cluster's nodes: what is free on them, and which artifacts they have."""

from __future__ import annotations

from dataclasses import dataclass, field

from erl_pipeline.plan.simulation.cluster import ClusterConfig, NodeGroup
from erl_pipeline.plan.simulation.job import Job


@dataclass
class Node:
    """One node. `has` maps an artifact to the time at which it is, or will be, on the node."""

    name: str
    group_name: str
    group: NodeGroup
    free_devices: int
    free_slots: int
    begun_workers: int = 0
    """How many workers have started, each of which took `start_seconds`."""
    has: dict[str, float] = field(default_factory=dict)
    computing: float = 0.0
    """Device-seconds spent computing."""
    waiting: float = 0.0
    """Device-seconds in which a stage holds devices but does not compute: transfers, start, overhead."""

    @property
    def stages_at_work(self) -> int:
        """How many stages the node computes now."""
        return self.group.slots - self.free_slots

    @property
    def seconds_to_start(self) -> float:
        """How long its next stage waits for a worker to start; 0 if one is free."""
        return self.group.start_seconds if self.stages_at_work >= self.begun_workers else 0.0


@dataclass(frozen=True)
class Seconds:
    """The parts of a stage's time on a node."""

    before: float
    """Until its inputs are there and its worker has started."""
    computing: float
    after: float
    """Its upload and overhead."""

    @property
    def whole(self) -> float:
        """The whole time."""
        return self.before + self.computing + self.after


@dataclass
class Traffic:
    """Bytes that were moved."""

    downloaded: float = 0.0
    uploaded: float = 0.0
    between: float = 0.0

    @property
    def total(self) -> float:
        """All bytes that were moved."""
        return self.downloaded + self.uploaded + self.between


def all_nodes(cluster: ClusterConfig) -> list[Node]:
    """The nodes of a cluster, without any artifact."""
    return [
        Node(f"{name}-{number}", name, group, group.devices, group.slots)
        for name, group in cluster.nodes.items()
        for number in range(group.count)
    ]


class Transfers:
    """How long transfers of artifacts take, and how many bytes they move. Each transfer has the whole
    bandwidth of its node; the store itself is never the bottleneck. A node gets an artifact once and keeps
    it."""

    def __init__(self, sizes: dict[str, float]) -> None:
        self._sizes = sizes
        self._elsewhere: set[str] = set()
        self.traffic = Traffic()

    def seconds(self, job: Job, node: Node, now: float) -> float:
        """How long until the inputs of a job are on a node; its transfers run one after the other."""
        total, arriving = 0.0, now
        for artifact_id in job.inputs:
            if artifact_id in node.has:
                arriving = max(arriving, node.has[artifact_id])
            else:
                total += self._fetching(artifact_id, node.group)
        return max(total, arriving - now)

    def fetch(self, job: Job, node: Node, now: float) -> None:
        """Begin the transfers of a job's inputs."""
        time = now
        for artifact_id in job.inputs:
            if artifact_id in node.has or artifact_id not in self._sizes:
                continue
            time += self._fetching(artifact_id, node.group)
            node.has[artifact_id] = time
            group, size = node.group, self._sizes[artifact_id]
            if self._from_node(artifact_id, group):
                self.traffic.between += size
            elif group.download_bytes_per_second is not None:
                self.traffic.downloaded += size

    def uploading(self, job: Job, group: NodeGroup) -> float:
        """How long the upload of a job's artifact takes, in seconds."""
        rate = group.upload_bytes_per_second
        return 0.0 if rate is None else job.bytes / rate

    def made(self, job: Job, node: Node, end: float) -> None:
        """Note that a job's artifact is in the store, and on the node that made it."""
        node.has[job.artifact_id] = end
        self._elsewhere.add(job.artifact_id)
        if node.group.upload_bytes_per_second is not None:
            self.traffic.uploaded += job.bytes

    def _fetching(self, artifact_id: str, group: NodeGroup) -> float:
        rate = group.download_bytes_per_second
        if self._from_node(artifact_id, group):
            rate = group.between_bytes_per_second
        return 0.0 if rate is None else self._sizes.get(artifact_id, 0.0) / rate

    def _from_node(self, artifact_id: str, group: NodeGroup) -> bool:
        return group.between_bytes_per_second is not None and artifact_id in self._elsewhere
