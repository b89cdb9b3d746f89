"""Simulating jobs on nodes, event by event, with the same rules as the execution of a plan.

A job can begin when its inputs are committed. Of the jobs that can begin, the first in the plan begins first,
on the node where it would end first. It holds its devices from its first transfer to its last.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from erl_pipeline.plan.simulation.cluster import ClusterConfig, NodeGroup, Work
from erl_pipeline.plan.simulation.job import Job
from erl_pipeline.plan.simulation.nodes import Node, Seconds, Traffic, Transfers, all_nodes


@dataclass(frozen=True)
class Ran:
    """When and where a job ran. `cause` is the number of the job for which it waited: the one that made its
    last input, or that freed what it needed; None if it waited for none."""

    job: Job
    nodes: tuple[str, ...]
    start: float
    seconds: Seconds
    cause: int | None

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
    """Simulate jobs. Jobs that make inputs must come before those that read them, and each job must fit on
    some node.

    Args:
        overhead_seconds: what each job takes besides its computing, on nodes that do not set it.
    """
    return _Simulator(jobs, cluster, overhead_seconds).run()


_Class = tuple[Work, int]
"""Jobs with the same needs: if one finds no place, the next one does not either."""


class _Simulator:
    def __init__(self, jobs: Sequence[Job], cluster: ClusterConfig, overhead_seconds: float) -> None:
        self._jobs = jobs
        self._overhead = overhead_seconds
        self._nodes = all_nodes(cluster)
        self._transfers = Transfers({job.artifact_id: job.bytes for job in jobs})
        self._ready: defaultdict[_Class, list[int]] = defaultdict(list)
        self._ended: list[tuple[float, int]] = []
        self._at: dict[int, list[Node]] = {}
        self._ran: dict[int, Ran] = {}
        self._made_last: dict[int, int] = {}
        numbers = {job.artifact_id: number for number, job in enumerate(jobs)}
        self._unmet: dict[int, int] = {}
        self._dependents: defaultdict[int, list[int]] = defaultdict(list)
        for number, job in enumerate(jobs):
            makers = [numbers[each] for each in job.inputs if each in numbers]
            self._unmet[number] = len(makers)
            for maker in makers:
                self._dependents[maker].append(number)
            if not makers:
                self._make_ready(number)

    def run(self) -> Simulation:
        """Go on until no job is left."""
        self._begin_what_can(0.0, None)
        while self._ended:
            now, number = heapq.heappop(self._ended)
            self._end(number)
            while self._ended and self._ended[0][0] == now:
                number = heapq.heappop(self._ended)[1]
                self._end(number)
            self._begin_what_can(now, number)
        ran = tuple(self._ran.values())
        makespan = max((each.end for each in ran), default=0.0)
        return Simulation(ran, makespan, self._use(makespan), self._transfers.traffic, self._critical())

    def _make_ready(self, number: int) -> None:
        job = self._jobs[number]
        heapq.heappush(self._ready[job.work, job.devices], number)

    def _begin_what_can(self, now: float, ended: int | None) -> None:
        waiting = {kind for kind, numbers in self._ready.items() if numbers}
        while waiting:
            kind = min(waiting, key=lambda each: self._ready[each][0])
            number = self._ready[kind][0]
            place = self._place(self._jobs[number], now)
            if place is None:
                waiting.discard(kind)
                continue
            heapq.heappop(self._ready[kind])
            self._begin(number, place, now, ended)
            if not self._ready[kind]:
                waiting.discard(kind)

    def _place(self, job: Job, now: float) -> list[Node] | None:
        """The node where a job would end first; several nodes if it needs more devices than one has."""
        best: tuple[float, list[Node]] | None = None
        able = [node for node in self._nodes if job.work in node.group.computes]
        for node in able:
            if job.devices <= node.free_devices and node.free_slots > 0:
                whole = self._seconds(job, [node], now).whole
                if best is None or whole < best[0]:
                    best = whole, [node]
        if best is not None:
            return best[1]
        for name in dict.fromkeys(node.group_name for node in able):
            together = self._together(job, [node for node in able if node.group_name == name])
            if together is not None:
                return together
        return None

    def _together(self, job: Job, nodes: Sequence[Node]) -> list[Node] | None:
        """Free nodes of a group that together have as many devices as the job needs."""
        per_node = nodes[0].group.devices
        if job.devices <= per_node or not per_node:
            return None
        wanted = -(-job.devices // per_node)
        free = [node for node in nodes if node.free_devices == per_node and node.free_slots > 0]
        return free[:wanted] if len(free) >= wanted else None

    def _seconds(self, job: Job, nodes: Sequence[Node], now: float) -> Seconds:
        group = nodes[0].group
        computing = job.seconds_on(group)
        assert computing is not None
        start = max(node.seconds_to_start for node in nodes)
        fetching = max(self._transfers.seconds(job, node, now) for node in nodes)
        overhead = self._overhead if group.overhead_seconds is None else group.overhead_seconds
        return Seconds(start + fetching, computing, self._transfers.uploading(job, group) + overhead)

    def _begin(self, number: int, nodes: list[Node], now: float, ended: int | None) -> None:
        job = self._jobs[number]
        seconds = self._seconds(job, nodes, now)
        left = job.devices
        for node in nodes:
            if node.stages_at_work >= node.begun_workers:
                node.begun_workers += 1
            held = min(left, node.free_devices)
            left -= held
            node.free_devices -= held
            node.free_slots -= 1
            node.computing += held * seconds.computing
            node.waiting += held * (seconds.before + seconds.after)
            self._transfers.fetch(job, node, now)
        cause = self._made_last.get(number)
        if cause is None or self._ran[cause].end < now:
            cause = ended if now > 0.0 else None
        self._ran[number] = Ran(job, tuple(node.name for node in nodes), now, seconds, cause)
        self._at[number] = nodes
        heapq.heappush(self._ended, (now + seconds.whole, number))

    def _end(self, number: int) -> None:
        job, nodes = self._jobs[number], self._at.pop(number)
        left = job.devices
        for node in nodes:
            held = min(left, node.group.devices - node.free_devices)
            left -= held
            node.free_devices += held
            node.free_slots += 1
        self._transfers.made(job, nodes[0], self._ran[number].end)
        for dependent in self._dependents.pop(number, []):
            self._unmet[dependent] -= 1
            if not self._unmet[dependent]:
                self._made_last[dependent] = number
                self._make_ready(dependent)

    def _critical(self) -> tuple[Ran, ...]:
        if not self._ran:
            return ()
        number: int | None = max(self._ran, key=lambda each: self._ran[each].end)
        path = []
        while number is not None:
            path.append(self._ran[number])
            number = self._ran[number].cause
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
