"""Simulating a run on the nodes of a cluster: the walk that executes a plan, with a clock that is simulated.

Of the stages that can begin, the first in the plan begins first, on the node where it would end first. It
holds its devices from its first transfer to its last.
"""

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from erl_pipeline.config.pipeline import ResourcesConfig
from erl_pipeline.plan.cluster import ClusterConfig, Job, NodeGroup, Work
from erl_pipeline.plan.commits import MOST_CHECKPOINTS
from erl_pipeline.plan.execution import Execution, execute
from erl_pipeline.plan.plan import Plan, PlannedStage
from erl_pipeline.plan.runner import Made, StageJob
from erl_pipeline.plan.stage import Listener, StageOutcome, WorkerSettings
from storage.artifacts.manifest import Manifest


@dataclass
class SimulatedNode:
    """One node. `has` maps an artifact to the time at which it is, or will be, on the node."""

    name: str
    group_name: str
    group: NodeGroup
    free_devices: int
    free_slots: int
    begun_workers: int = 0
    """How many workers have started, each of which took `start_seconds`."""
    has: dict[str, float] = field(default_factory=dict)
    samples_from: str = ""
    """The checkpoint that it has handed over to what samples."""
    has_trained: bool = False
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
    """The parts of a stage's time on a node: until a worker and the trainer's processes have started, until
    its inputs are there, until its weights are where it samples, until it may write another checkpoint; what
    it scores and computes; what it writes and uploads; and its overhead."""

    starting: float = 0.0
    fetching: float = 0.0
    hand_over: float = 0.0
    waiting_for_commits: float = 0.0
    scoring: float = 0.0
    computing: float = 0.0
    writing: float = 0.0
    overhead: float = 0.0

    @property
    def on_devices(self) -> float:
        """The time in which it computes."""
        return self.scoring + self.computing

    @property
    def whole(self) -> float:
        """The whole time."""
        seconds: float = sum(getattr(self, part.name) for part in fields(self))
        return seconds


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


def all_nodes(cluster: ClusterConfig) -> list[SimulatedNode]:
    """The nodes of a cluster, without any artifact."""
    return [
        SimulatedNode(f"{name}-{number}", name, group, group.devices, group.slots)
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

    def seconds(self, job: Job, node: SimulatedNode, now: float) -> float:
        """How long until the inputs of a job are on a node; its transfers run one after the other."""
        total, arriving = 0.0, now
        for artifact_id in job.inputs:
            if artifact_id in node.has:
                arriving = max(arriving, node.has[artifact_id])
            else:
                total += self._fetching(artifact_id, node.group)
        return max(total, arriving - now)

    def fetch(self, job: Job, node: SimulatedNode, now: float) -> None:
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

    def writing(self, job: Job, group: NodeGroup) -> float:
        """How long a job writes its artifact and uploads it, in seconds, and copies what is written later."""
        copying, whole = group.state_bytes_per_second, job.bytes + job.state_bytes
        return (
            _seconds_for(whole if copying is None else job.bytes, group.write_bytes_per_second)
            + _seconds_for(job.state_bytes, copying)
            + _seconds_for(whole, group.upload_bytes_per_second)
        )

    def committing(self, job: Job, group: NodeGroup) -> float:
        """How long a job's artifact is written, hashed and flushed beside other jobs."""
        later = 0.0 if group.state_bytes_per_second is None else job.state_bytes
        return _seconds_for(later, group.write_bytes_per_second) + _seconds_for(
            job.bytes + job.state_bytes, group.commit_bytes_per_second
        )

    def made(self, job: Job, node: SimulatedNode, end: float) -> None:
        """Note that a job's artifact is in the store, and on the node that made it."""
        node.has[job.artifact_id] = end
        self._elsewhere.add(job.artifact_id)
        if node.group.upload_bytes_per_second is not None:
            self.traffic.uploaded += self._sizes[job.artifact_id]

    def _fetching(self, artifact_id: str, group: NodeGroup) -> float:
        rate = group.download_bytes_per_second
        if self._from_node(artifact_id, group):
            rate = group.between_bytes_per_second
        return 0.0 if rate is None else self._sizes.get(artifact_id, 0.0) / rate

    def _from_node(self, artifact_id: str, group: NodeGroup) -> bool:
        return group.between_bytes_per_second is not None and artifact_id in self._elsewhere


def _seconds_for(size: float, rate: float | None) -> float:
    return 0.0 if rate is None else size / rate


@dataclass(frozen=True)
class Ran:
    """When and where a job ran. `cause` is the id of the artifact for which it waited: its last input, or the
    one whose job freed what it needed; None if it waited for none."""

    job: Job
    nodes: tuple[str, ...]
    start: float
    seconds: Seconds
    cause: str | None

    @property
    def end(self) -> float:
        """When its artifact is committed."""
        return self.start + self.seconds.whole


@dataclass(frozen=True)
class GroupUse:
    """How the devices of a group of nodes spent their time, as shares that add up to 1."""

    devices: int
    computing: float
    waiting: float
    """Held by a stage that does not compute: it moves artifacts, starts, or has overhead."""
    idle: float


@dataclass(frozen=True)
class Simulation:
    """What happened in a simulation. `ran` is in the order in which jobs began."""

    ran: tuple[Ran, ...]
    makespan: float
    use: dict[str, GroupUse]
    traffic: Traffic
    critical: tuple[Ran, ...]
    """The critical path: jobs, from first to last, each of which waited for the one before."""


def simulate(jobs: Sequence[Job], cluster: ClusterConfig, overhead_seconds: float = 0.0) -> Simulation:
    """Execute a plan of these jobs on simulated nodes. Jobs that make inputs must come before those that read
    them, and each job must fit on the cluster.

    Args:
        overhead_seconds: what each job takes besides its computing, on nodes that do not set it.
    """
    runner = SimulatedRunner(jobs, cluster, overhead_seconds)
    execute(
        Plan(tuple(job.planned for job in jobs), ()),
        Execution(
            store=None,
            runner=runner,
            worker=WorkerSettings("", "", 1),
            resources=ResourcesConfig(),
            listener=Listener(),
            record=lambda _planned, _outcome: None,
            stopped=lambda: False,
            has_room=runner.has_room,
            wait_for_one=runner.wait_for_one,
        ),
    )
    return runner.result()


_SOME_FIELDS: Callable[..., Manifest] = Manifest.model_construct
"""Nothing is stored, so that no more of a manifest is looked at."""
_NEVER = datetime.fromtimestamp(0, UTC)
_NOTHING_MADE: Mapping[str, Any] = {
    "run": "",
    "counters": {},
    "metrics": {},
    "started_at": _NEVER,
    "finished_at": _NEVER,
}


class SimulatedRunner:
    """A runner whose stages end after simulated seconds, and the state of its nodes."""

    workers = 0
    retries = False
    shares_files = False

    def __init__(self, jobs: Sequence[Job], cluster: ClusterConfig, overhead_seconds: float) -> None:
        self._jobs = {job.artifact_id: job for job in jobs}
        self._ids = [job.artifact_id for job in jobs]
        self._numbers = {artifact_id: number for number, artifact_id in enumerate(self._ids)}
        self._overhead = overhead_seconds
        self._nodes = all_nodes(cluster)
        self._transfers = Transfers({job.artifact_id: job.bytes + job.state_bytes for job in jobs})
        self._now = 0.0
        self._ended_now: list[str] = []
        """What ended at this time, in the order of the plan."""
        self._found: list[SimulatedNode] = []
        self._full: set[tuple[Work, int]] = set()
        """Needs of jobs for which there is no place until another job ends."""
        self._ending: list[tuple[float, int, Future[Made]]] = []
        self._at: dict[str, list[SimulatedNode]] = {}
        self._ran: dict[str, Ran] = {}
        self._all_committed = 0.0
        """When everything that has ended is committed."""
        self._checkpoints: list[float] = []
        """When each checkpoint is committed."""

    def prepare(self) -> None:
        """Nothing has to start."""

    def finished(self, outcome: StageOutcome) -> None:
        """Do nothing: the job has ended."""

    def has_room(self, planned: PlannedStage) -> bool:
        """Find the nodes for a stage, which `submit` then takes; False where it has to wait."""
        job = self._jobs[planned.artifact_id]
        needs = job.work, job.devices
        if needs in self._full:
            return False
        place = self._place(job)
        if place is None:
            self._full.add(needs)
            return False
        self._found = place
        return True

    def submit(self, job: StageJob) -> Future[Made]:
        """Begin a stage on the nodes that were found for it."""
        self._begin(self._jobs[job.planned.artifact_id], self._found)
        future: Future[Made] = Future()
        artifact_id = job.planned.artifact_id
        heapq.heappush(self._ending, (self._ran[artifact_id].end, self._numbers[artifact_id], future))
        return future

    def wait_for_one(self, _at_work: Collection[Future[Any]]) -> Collection[Future[Any]]:
        """Turn the clock to the next end of a job; returns all that end then."""
        self._now, self._ended_now = self._ending[0][0], []
        self._full.clear()
        done = []
        ids = self._ids
        while self._ending and self._ending[0][0] == self._now:
            _, number, future = heapq.heappop(self._ending)
            self._end(self._jobs[ids[number]])
            self._ended_now.append(ids[number])
            future.set_result(_SOME_FIELDS(artifact_id=ids[number], **_NOTHING_MADE))
            done.append(future)
        return done

    def result(self) -> Simulation:
        """What happened."""
        ran = tuple(self._ran.values())
        makespan = max((each.end for each in ran), default=0.0)
        makespan = max(makespan, self._all_committed)
        return Simulation(ran, makespan, self._use(makespan), self._transfers.traffic, self._critical())

    def _place(self, job: Job) -> list[SimulatedNode] | None:
        """The node where a job would end first; several nodes if it needs more devices than one has."""
        best: tuple[float, list[SimulatedNode]] | None = None
        able = [node for node in self._nodes if job.work in node.group.computes]
        for node in able:
            if job.devices <= node.free_devices and node.free_slots > 0:
                whole = self._seconds(job, [node]).whole
                if best is None or whole < best[0]:
                    best = whole, [node]
        if best is not None:
            return best[1]
        for name in dict.fromkeys(node.group_name for node in able):
            together = self._together(job, [node for node in able if node.group_name == name])
            if together is not None:
                return together
        return None

    def _together(self, job: Job, nodes: Sequence[SimulatedNode]) -> list[SimulatedNode] | None:
        """Free nodes of a group that together have as many devices as the job needs."""
        per_node = nodes[0].group.devices
        if job.devices <= per_node or not per_node:
            return None
        wanted = -(-job.devices // per_node)
        free = [node for node in nodes if node.free_devices == per_node and node.free_slots > 0]
        return free[:wanted] if len(free) >= wanted else None

    def _seconds(self, job: Job, nodes: Sequence[SimulatedNode]) -> Seconds:
        group = nodes[0].group
        computing = job.seconds_on(group)
        assert computing is not None
        starting = max(node.seconds_to_start for node in nodes)
        if job.work == "training" and job.checkpoint:
            stays = group.trainer_wake_seconds is not None and all(node.has_trained for node in nodes)
            starting += (group.trainer_wake_seconds or 0.0) if stays else group.trainer_start_seconds
        new = job.work == "generation" and any(node.samples_from != job.checkpoint for node in nodes)
        rate = group.handover_bytes_per_second
        weights = self._jobs[job.checkpoint].bytes if job.checkpoint in self._jobs else 0.0
        return Seconds(
            starting=starting,
            fetching=max(self._transfers.seconds(job, node, self._now) for node in nodes),
            hand_over=weights / rate if new and rate is not None else 0.0,
            waiting_for_commits=self._until_few_checkpoints(job),
            scoring=job.scoring_on(group),
            computing=computing,
            writing=self._transfers.writing(job, group),
            overhead=self._overhead if group.overhead_seconds is None else group.overhead_seconds,
        )

    def _until_few_checkpoints(self, job: Job) -> float:
        """How long a job that makes a checkpoint waits for the commits of others."""
        pending = [end for end in self._checkpoints if end > self._now]
        if job.planned.stage.output != "checkpoint" or len(pending) < MOST_CHECKPOINTS:
            return 0.0
        return pending[-MOST_CHECKPOINTS] - self._now

    def _begin(self, job: Job, nodes: list[SimulatedNode]) -> None:
        seconds = self._seconds(job, nodes)
        left = job.devices
        for node in nodes:
            if node.stages_at_work >= node.begun_workers:
                node.begun_workers += 1
            held = min(left, node.free_devices)
            left -= held
            node.free_devices -= held
            node.free_slots -= 1
            node.computing += held * seconds.on_devices
            node.waiting += held * (seconds.whole - seconds.on_devices)
            if job.work == "generation":
                node.samples_from = job.checkpoint
            node.has_trained |= job.work == "training" and bool(job.checkpoint)
            self._transfers.fetch(job, node, self._now)
        inputs = [each for each in self._ended_now if each in job.inputs]
        cause = next(reversed(inputs or self._ended_now), None)
        names = tuple(node.name for node in nodes)
        self._ran[job.artifact_id] = Ran(job, names, self._now, seconds, cause)
        self._at[job.artifact_id] = nodes

    def _end(self, job: Job) -> None:
        nodes = self._at.pop(job.artifact_id)
        left = job.devices
        for node in nodes:
            held = min(left, node.group.devices - node.free_devices)
            left -= held
            node.free_devices += held
            node.free_slots += 1
        self._transfers.made(job, nodes[0], self._now)
        committing = self._transfers.committing(job, nodes[0].group)
        if committing:
            self._all_committed = max(self._all_committed, self._now) + committing
            if job.planned.stage.output == "checkpoint":
                self._checkpoints.append(self._all_committed)

    def _critical(self) -> tuple[Ran, ...]:
        last = max(self._ran.values(), key=lambda each: each.end, default=None)
        path = []
        while last is not None:
            path.append(last)
            last = None if last.cause is None else self._ran[last.cause]
        return tuple(reversed(path))

    def _use(self, makespan: float) -> dict[str, GroupUse]:
        groups: dict[str, NodeGroup] = {node.group_name: node.group for node in self._nodes}
        found = {}
        for name, group in groups.items():
            nodes = [node for node in self._nodes if node.group_name == name]
            devices = group.devices * len(nodes)
            whole = devices * makespan
            computing = sum(node.computing for node in nodes) / whole if whole else 0.0
            waiting = sum(node.waiting for node in nodes) / whole if whole else 0.0
            found[name] = GroupUse(devices, computing, waiting, max(0.0, 1.0 - computing - waiting))
        return found
