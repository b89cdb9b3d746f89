"""Executing a plan: artifacts that are committed and undamaged are reused; the others are computed after
their inputs."""

import heapq
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from typing import Any

from erl_pipeline.config.pipeline import ResourcesConfig
from erl_pipeline.plan.commits import MOST_CHECKPOINTS, Commits
from erl_pipeline.plan.plan import Plan, PlannedStage, StageKey
from erl_pipeline.plan.remaking import Remaking
from erl_pipeline.plan.runner import (
    MOST_DEATHS,
    Made,
    Runner,
    StageJob,
    WorkerDied,
    can_pass,
    outcome_of,
    places_for,
)
from erl_pipeline.plan.stage import Listener, NextStage, StageOutcome, WorkerSettings
from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.artifacts.uncommitted import Draft
from storage.errors import ConfigError, Interrupted, PrunedFileError, StateNotKept, StoreError

_LOOK_SECONDS = 0.2


def wait_for_one(at_work: Collection[Future[Any]]) -> Collection[Future[Any]]:
    """Wait a moment until something at work has ended; returns what has."""
    return wait(at_work, timeout=_LOOK_SECONDS, return_when=FIRST_COMPLETED).done


@dataclass(frozen=True)
class Execution:
    """What executing a plan needs besides the plan.

    `record` is called, in the thread of `execute`, with every artifact that the run computes or reuses.
    Artifacts at `trusted` places are in the run's ledger: they are looked at only if something is to be made
    from them. `stopped` says whether the run was asked to stop. `makers` gives the stages, outside of the
    plan, that made artifacts from which the plan begins; it is called only if one of these has to be made
    again. The state of the optimizer is committed each `state_every`-th iteration. Artifacts of at least
    `background_bytes` are committed beside the next stage; None: none. A simulation has no store:
    then every stage is computed. It says itself with `has_room` whether a stage can begin now, instead of by
    the runner's workers and `resources`, and its `wait_for_one` turns the clock.
    """

    store: ArtifactStore | None
    runner: Runner
    worker: WorkerSettings
    resources: ResourcesConfig
    listener: Listener
    record: Callable[[PlannedStage, StageOutcome], None]
    stopped: Callable[[], bool]
    trusted: Collection[StageKey] = frozenset()
    makers: Callable[[], Sequence[PlannedStage]] = tuple
    state_every: int = 1
    background_bytes: int | None = None
    has_room: Callable[[PlannedStage], bool] | None = None
    wait_for_one: Callable[[Collection[Future[Any]]], Collection[Future[Any]]] = wait_for_one


def execute(plan: Plan, execution: Execution) -> None:
    """Bring every artifact of a plan into the store.

    A damaged artifact is set aside and made again, even an old one that something new is to be made from.
    What retention has removed is computed again when a stage reads it. For the state of an optimizer that was
    not committed, the trainings since the last one that was are repeated. Raises what a stage raises, after
    the other stages at work have ended and are recorded; `Interrupted` when the run was asked to stop; and
    ConfigError for stages that wait for each other, and for removed files that today's code would not make.
    """
    _Walk(plan, execution).run()


@dataclass
class _AtWork:
    number: int
    started: float


class _Walk:
    """The state of an execution. Stages are named by their numbers in the plan; of the stages that can begin,
    the first in the plan begins first."""

    def __init__(self, plan: Plan, execution: Execution) -> None:
        self._given = execution
        self._again = Remaking(
            plan, execution.store, execution.listener, execution.makers, execution.state_every
        )
        self._nodes = self._again.nodes
        self._unmet: dict[int, set[str]] = {}
        self._dependents: defaultdict[str, list[int]] = defaultdict(list)
        self._ready: list[int] = []
        self._later: list[tuple[float, int]] = []
        self._at_work: dict[Future[Made], _AtWork] = {}
        self._commits: Commits | None = None
        store, least = execution.store, execution.background_bytes
        if store is not None and store.local and least is not None and execution.runner.shares_files:
            self._commits = Commits(store, least, execution.stopped)
        self._failed_commit: BaseException | None = None
        self._failures: Counter[int] = Counter()
        self._deaths: Counter[int] = Counter()
        wanted = [at for at, node in enumerate(plan.nodes) if node.place not in execution.trusted]
        self._pending = {plan.nodes[number].artifact_id for number in wanted}
        for number in wanted:
            self._await(number, set(plan.nodes[number].recipe.inputs.values()) & self._pending)

    def run(self) -> None:
        """Go on until nothing is left to do."""
        try:
            while self._ready or self._at_work or self._later or self._commits:
                self._begin_what_can()
                if self._at_work or self._commits:
                    self._collect()
                elif not self._ready and self._later:
                    self._raise_if_stopped()
                    time.sleep(_LOOK_SECONDS)
        finally:
            # Stages at work either commit, or notice that the run was asked to stop.
            self._record_the_rest()
        if self._unmet:
            waiting = ", ".join(self._nodes[number].title for number in sorted(self._unmet))
            raise ConfigError(f"these stages wait for each other: {waiting}")

    def _await(self, number: int, artifact_ids: set[str]) -> None:
        """Let a stage begin when these artifacts are there."""
        if not artifact_ids:
            heapq.heappush(self._ready, number)
            return
        self._unmet[number] = artifact_ids
        for artifact_id in artifact_ids:
            self._dependents[artifact_id].append(number)

    def _begin_what_can(self) -> None:
        now = time.monotonic()
        for due in [entry for entry in self._later if entry[0] <= now]:
            self._later.remove(due)
            heapq.heappush(self._ready, due[1])
        held: list[int] = []
        at_work = {self._nodes[each.number].artifact_id for each in self._at_work.values()}
        computed = at_work | self._written.keys()
        while self._ready:
            self._raise_if_stopped()
            number = heapq.heappop(self._ready)
            node = self._nodes[number]
            if node.artifact_id in computed:
                self._await(number, {node.artifact_id})
            elif not self._reuse(number):
                if not self._has_room(node):
                    held.append(number)
                elif damaged := self._again.damaged_inputs(number, self._written):
                    for artifact_id in damaged:
                        self._queue_again(artifact_id)
                    self._await(number, damaged)
                else:
                    computed.add(node.artifact_id)
                    self._submit(number)
        for number in held:
            heapq.heappush(self._ready, number)

    def _reuse(self, number: int) -> bool:
        """Record a stage as reused if its artifact is committed and whole, and say whether it is."""
        began = time.perf_counter()
        manifest = self._again.committed(number)
        if manifest is not None:
            self._finish(number, manifest, reused=True, seconds=time.perf_counter() - began)
        return manifest is not None

    @property
    def _written(self) -> Mapping[str, Manifest]:
        """The artifacts that are written and not committed."""
        return {} if self._commits is None else self._commits.written

    def _has_room(self, node: PlannedStage) -> bool:
        """Whether a worker is free, and one with a device too if the stage needs one."""
        given = self._given
        if given.has_room is not None:
            return given.has_room(node)
        if len(self._at_work) >= given.runner.workers:
            return False
        if node.stage.output == "checkpoint":
            kinds = [manifest.kind for manifest in self._written.values()]
            if kinds.count("checkpoint") >= MOST_CHECKPOINTS:
                return False
        places = places_for(node.stage.needs, given.resources)
        if places is None:
            return True
        needs = [self._nodes[each.number].stage.needs for each in self._at_work.values()]
        return sum(places_for(each, given.resources) == places for each in needs) < len(places)

    def _queue_again(self, artifact_id: str) -> None:
        """Queue the stage that makes an artifact, unless it is queued or at work."""
        if artifact_id not in self._pending:
            self._pending.add(artifact_id)
            number = self._again.numbers[artifact_id]
            self._await(number, set(self._nodes[number].recipe.inputs.values()) & self._pending)

    def _submit(self, number: int) -> None:
        node = self._nodes[number]
        self._given.listener.stage_started(node.title)
        self._given.runner.prepare()
        started = time.perf_counter()
        repeated, state = self._again.repeated.get(number, ()), self._again.writes_state(node)
        job = StageJob(node, self._given.worker, repeated, state, following=self._following(number))
        if self._commits is not None:
            job = replace(job, folder=self._commits.begin(number), expected=self._commits.expected)
        future = self._given.runner.submit(job)
        self._at_work[future] = _AtWork(number, started)

    def _following(self, number: int) -> tuple[NextStage, ...]:
        """The stages that differ from one by their index alone and that its worker is asked for next: those
        that can begin and are not there, if only one worker can compute them."""
        given, node = self._given, self._nodes[number]
        places = places_for(node.stage.needs, given.resources)
        workers = given.runner.workers if places is None else min(len(places), given.runner.workers)
        if not node.stage.begins_next or workers > 1:
            return ()
        alike = replace(node.recipe, index={})
        ready = [(self._nodes[each], each) for each in sorted(self._ready)]
        return tuple(
            NextStage(other.artifact_id, other.recipe.index)
            for other, each in ready
            if other.stage is node.stage
            and replace(other.recipe, index={}) == alike
            and self._again.committed(each) is None
        )

    def _collect(self) -> None:
        """Wait until something has ended, a stage or a commit, and record it or decide what follows from its
        failure. Where both have failed, the stage's failure may be why what it read was not written."""
        commits = list(self._commits or ())
        ended = set(self._given.wait_for_one([*commits, *self._at_work]))
        taken = [self._take(commit) for commit in commits if commit in ended]
        uncommitted = next(filter(None, taken), None)
        for future in sorted(self._at_work.keys() & ended, key=lambda each: self._at_work[each].number):
            work = self._at_work.pop(future)
            failure = future.exception()
            if failure is None:
                self._made(work, future.result())
            elif uncommitted is None:
                self._again_or_raise(work.number, failure)
            elif isinstance(failure, StoreError):
                self._given.listener.warn(f"{self._nodes[work.number].title} failed too: {failure}")
            else:
                self._warn_uncommitted(uncommitted)
                raise failure
        if uncommitted is not None:
            self._failed_commit = uncommitted
            raise uncommitted

    def _made(self, work: _AtWork, made: Made) -> None:
        """Record an artifact that is committed; let one that is written be committed and read."""
        seconds = time.perf_counter() - work.started
        if not isinstance(made, Draft):
            self._finish(work.number, made, reused=False, seconds=seconds)
            return
        assert self._commits is not None
        future = self._commits.add(work.number, self._nodes[work.number], made, seconds)
        if future.done():
            if future.exception() is None:
                self._take(future)
        elif made.manifest.artifact_id in self._commits.placed:
            self._release(made.manifest.artifact_id)

    def _take(self, commit: Future[Manifest]) -> BaseException | None:
        """Record what was committed; returns the error of a commit that failed."""
        assert self._commits is not None
        of, error = self._commits.take(commit)
        if error is None:
            self._finish(of.number, commit.result(), reused=False, seconds=of.seconds)
        return error

    def _again_or_raise(self, number: int, error: BaseException) -> None:
        node = self._nodes[number]
        if self._commits is not None:
            self._commits.discard(number)
        delays = () if self._given.runner.retries else node.stage.retry_seconds
        if (
            isinstance(error, WorkerDied)
            and not self._given.runner.retries
            and self._deaths[number] < MOST_DEATHS
        ):
            self._deaths[number] += 1
            self._given.listener.warn(f"{node.title}: {error}. It is computed again.")
            self._again.look_again(node.artifact_id)  # The worker may have died after the commit.
            heapq.heappush(self._ready, number)
        elif isinstance(error, StateNotKept) and error.artifact_id in self._written:
            self._await(number, {error.artifact_id})
        elif isinstance(error, StateNotKept):
            self._again.repeat(number, error)
            heapq.heappush(self._ready, number)
        elif isinstance(error, PrunedFileError):
            lacking = self._again.complete(number, error)
            self._queue_again(lacking)
            self._await(number, {lacking})
        elif can_pass(error) and self._failures[number] < len(delays):
            self._given.listener.warn(f"{node.title} failed and is tried again: {error}")
            self._later.append((time.monotonic() + delays[self._failures[number]], number))
            self._failures[number] += 1
        else:
            raise error

    def _record_the_rest(self) -> None:
        """Wait for the stages at work and record what they commit, however the execution ends."""
        wait(self._at_work)
        for future, work in sorted(self._at_work.items(), key=lambda each: each[1].number):
            error = future.exception()
            try:
                if error is None:
                    self._made(work, future.result())
            except StoreError as unrecorded:
                error = unrecorded
            if error is not None and not isinstance(error, Interrupted):
                self._given.listener.warn(f"{self._nodes[work.number].title} failed too: {error}")
        self._at_work.clear()
        if self._commits is not None:
            wait(list(self._commits))
            for commit in list(self._commits):
                if uncommitted := self._take(commit):
                    self._warn_uncommitted(uncommitted)
            self._commits.close()

    def _warn_uncommitted(self, error: BaseException) -> None:
        if error is not self._failed_commit:
            self._failed_commit = error
            self._given.listener.warn(f"what was written could not be committed: {error}")

    def _finish(self, number: int, manifest: Manifest, *, reused: bool, seconds: float) -> None:
        node = self._nodes[number]
        given = outcome_of(node, manifest, reused, seconds)
        if number < self._again.planned:
            self._given.record(node, given)
        self._given.runner.finished(given)
        self._given.listener.stage_finished(node.title, given)
        self._again.made(node.artifact_id)
        self._pending.discard(node.artifact_id)
        self._release(node.artifact_id)

    def _release(self, artifact_id: str) -> None:
        """Let the stages begin that waited for nothing else."""
        for dependent in self._dependents.pop(artifact_id, []):
            unmet = self._unmet[dependent]
            unmet.discard(artifact_id)
            if not unmet:
                del self._unmet[dependent]
                heapq.heappush(self._ready, dependent)

    def _raise_if_stopped(self) -> None:
        if self._given.stopped():
            raise Interrupted
