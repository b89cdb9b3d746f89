"""Certifying a run: copies of it are trained, killed at random moments, continued, and compared with it."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from bisect import bisect
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil

from erl_pipeline.runs.certificate.certificate import (
    Certificate,
    Kill,
    MomentKind,
    Target,
    commit_certificate,
)
from erl_pipeline.runs.certificate.comparison import Comparison, compare_copy
from erl_pipeline.runs.certificate.driver_process import start_driver
from erl_pipeline.runs.certificate.moments import (
    Watch,
    after,
    after_publication,
    before_publication,
    committed,
    then,
    where_it_died,
)
from erl_pipeline.runs.certificate.subject import Subject
from erl_pipeline.runs.certificate.targets import descendants, targets
from storage.artifacts.manifest import code_version, machine, package_versions
from storage.artifacts.recipe import derive_seed
from storage.artifacts.staging import StagingFolder, remove_abandoned
from storage.errors import InputError, Interrupted

_LOOK_SECONDS = 0.001
_PAUSE = 3
"""The pause after a look at the store is this many times as long as the look took."""
_LAST_LINES = 5
_OTHERS_SHARE = 0.5
_MOMENTS: tuple[MomentKind, ...] = ("time", "time", "before publication", "after publication")


@dataclass(frozen=True)
class Certified:
    """A certificate, its artifact, and the folder of the copies (None if they were not kept)."""

    certificate: Certificate
    artifact_id: str
    kept: Path | None


def certify(
    subject: Subject,
    kills: int,
    seed: int,
    scratch: Path,
    keep: bool,
    tell: Callable[[str], None],
    stop: threading.Event,
) -> Certified:
    """Train copies of a run, kill them `kills` times in total, and commit the result of the comparison.

    The kills are spread over the run. If a copy is complete before the last kill, it is compared, and another
    copy is begun. Worker processes, in which some runners compute stages, the ranks of a trainer and vLLM's
    servers are killed too.

    Args:
        seed: seed of the moments.
        scratch: a folder for the copies' stores, which all processes of the runner can reach.
        keep: do not remove the copies.
        tell: is called with a line for each kill.

    Raises InputError when a copy fails by itself, and `Interrupted` once `stop` is set. All processes that
    were started have then ended.
    """
    begun = time.monotonic()
    at_work = scratch / "at_work"
    remove_abandoned(at_work)
    folder = StagingFolder(at_work)
    kept = scratch / "kept" / folder.path.name if keep else None
    copies = _Copies(subject, folder.path, random.Random(derive_seed(seed, "certify")), tell, stop)
    found = Comparison()
    try:
        while True:
            store = copies.complete_one(kills)
            found.add(compare_copy(subject, str(store)), f"copy {copies.count}: ")
            if len(copies.kills) >= kills:
                break
    finally:
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            folder.path.rename(kept)
        folder.release()
    certificate = Certificate(
        run=subject.run.name,
        iterations=subject.plan.iterations,
        seed=seed,
        runner=subject.config.runner.model_dump(mode="json"),
        kills=tuple(copies.kills),
        copies=copies.count,
        artifacts=found.artifacts,
        files=found.files,
        bytes=found.bytes,
        lost=tuple(found.lost),
        doubled=tuple(found.doubled),
        different=tuple(found.different),
        not_promised=tuple(found.not_promised),
        seconds=time.monotonic() - begun,
        code_version=code_version(),
        machine=machine(subject.config.resources.threads),
        packages=package_versions(),
    )
    return Certified(certificate, commit_certificate(subject.store, certificate, subject.checkpoint), kept)


class _Copies:
    """Trains copies, one after the other, and kills them."""

    def __init__(
        self,
        subject: Subject,
        folder: Path,
        chance: random.Random,
        tell: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        self.count = 0
        self.kills: list[Kill] = []
        self._subject = subject
        self._folder = folder
        self._chance = chance
        self._tell = tell
        self._stop = stop

    def complete_one(self, kills: int) -> Path:
        """Train a copy to its end, and kill it until there are `kills` kills in total; return its store."""
        self.count += 1
        store, log = self._folder / f"copy-{self.count}", self._folder / f"copy-{self.count}.log"
        plan = iter(self._draw(store, kills - len(self.kills)))
        begun = time.monotonic()
        driver, others_killed = self._start(store, log), 0
        started: set[psutil.Process] = set()
        try:
            kind, moment = next(plan, _NEVER)
            while True:
                if self._await(driver, moment()):
                    started |= descendants(driver)
                    target = self._strike(driver, store)
                    self._record(target, kind, time.monotonic() - begun, store, kills)
                    kind, moment = next(plan, _NEVER)
                    if target != "driver":
                        others_killed += 1
                        continue
                elif driver.exitcode == 0:
                    return store
                elif not others_killed:
                    raise InputError(
                        f"the copy of run {self._subject.run.name} ended with status {driver.exitcode}:\n"
                        + _last_lines(log)
                    )
                # The driver was killed, or it gave up because other processes were.
                driver, others_killed = self._start(store, log), 0
        finally:
            started |= descendants(driver)
            driver.kill()
            driver.join()
            _end(started)

    def _draw(self, store: Path, kills: int) -> list[tuple[MomentKind, Callable[[], Watch]]]:
        """The moments of a copy's kills, drawn at random over the time that the run's stages took.

        They are counted in artifacts and not by the clock, so that a copy that is faster or slower than the
        run is killed too.
        """
        ends = list(accumulate(self._subject.seconds))
        points = sorted(self._chance.uniform(0.0, ends[-1]) for _ in range(kills))
        drawn: list[tuple[MomentKind, Callable[[], Watch]]] = []
        for point in points:
            number = min(bisect(ends, point), len(ends) - 1)
            into = point - (ends[number] - self._subject.seconds[number])
            kind = self._chance.choice(_MOMENTS)
            drawn.append((kind, partial(_moment, kind, store, number, into)))
        return drawn

    def _start(self, store: Path, log: Path) -> BaseProcess:
        return start_driver(
            self._subject.config, str(store), iterations=self._subject.plan.iterations, log_file=log
        )

    def _await(self, driver: BaseProcess, moment: Watch) -> bool:
        """Wait for the moment; False if the driver ended before it."""
        while driver.exitcode is None:
            if self._stop.is_set():
                raise Interrupted
            begun = time.monotonic()
            if moment():
                return True
            # Looking at a large store takes long, and must not slow down the copy.
            time.sleep(max(_LOOK_SECONDS, _PAUSE * (time.monotonic() - begun)))
        return False

    def _strike(self, driver: BaseProcess, store: Path) -> Target:
        """Kill the driver or, with some probability, another process of the copy if there is one."""
        others = targets(driver, store)
        if others and self._chance.random() < _OTHERS_SHARE:
            kind = self._chance.choice(sorted(others))
            with suppress(ProcessLookupError):  # It may have ended just now.
                os.kill(self._chance.choice(others[kind]), signal.SIGKILL)
            return kind
        driver.kill()
        driver.join()
        return "driver"

    def _record(self, target: Target, kind: MomentKind, seconds: float, store: Path, wanted: int) -> None:
        interrupted = where_it_died(store, self._subject.run.name)
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.kills.append(Kill(self.count, target, kind, seconds, at, interrupted))
        self._tell(
            f"kill {len(self.kills)} of {wanted}: the {target} of copy {self.count} after {seconds:.1f} s, "
            f"{interrupted}"
        )


def _moment(kind: MomentKind, store: Path, number: int, into: float) -> Watch:
    """The moment after `number` artifacts are committed: `into` seconds later, or in the next commit."""
    if kind == "time":
        return then(committed(store, number), lambda: after(into))
    commit = before_publication if kind == "before publication" else after_publication
    return then(committed(store, number), lambda: commit(store, 1))


def _never() -> Watch:
    return lambda: False


_NEVER: tuple[MomentKind, Callable[[], Watch]] = ("time", _never)


def _end(processes: Iterable[psutil.Process]) -> None:
    """End processes that the drivers have left behind, if they have not ended by themselves."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes)


def _last_lines(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-_LAST_LINES:])
