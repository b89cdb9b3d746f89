"""Workers as plain processes of this machine that dial in, without Prefect, and a runner for small plans."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Lock
from uuid import uuid4

from erl_pipeline.plan.job import StageJob, StageOutcome
from erl_pipeline.plan.runner import Runner, RunnerCall, RunnerPlugin
from flows.prefect_workers.pool import DialInPool
from flows.prefect_workers.reception import Invitation
from flows.prefect_workers.recruiting import Asked
from flows.prefect_workers.settings import PrefectWorkersConfig
from storage.artifacts.manifest import Manifest

ROOT = Path(__file__).parents[3]

_PROGRAM = """
import sys
from flows.prefect_workers.attendance import attend
from flows.prefect_workers.reception import Invitation
attended = attend(Invitation(*sys.argv[1:]))
print(attended.message)
sys.exit(0 if attended.good else 3)
"""


def start_worker(invitation: Invitation, code: Path = ROOT) -> subprocess.Popen[str]:
    """A process that dials in, with the packages in the folder `code`."""
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, invitation.address, invitation.key, invitation.ticket],
        stdout=subprocess.PIPE,
        text=True,
        cwd=code,
        env={**os.environ, "PYTHONPATH": str(code)},
    )


class Processes:
    """Starts workers as processes, instead of flow runs.

    Args:
        starts: how many it starts; later ones are asked for in vain.
        code: folder of the packages that the processes use.
    """

    def __init__(self, starts: int = 9, code: Path = ROOT) -> None:
        self.started: list[subprocess.Popen[str]] = []
        self.cancelled: list[str] = []
        self._asking = Lock()
        self._starts = starts
        self._code = code

    def ask(self, place: int, invitation: Invitation) -> Asked:
        with self._asking:
            if len(self.started) < self._starts:
                self.started.append(start_worker(invitation, self._code))
        return Asked(uuid4(), f"worker {place + 1}")

    def state(self, _asked: Asked) -> tuple[bool, str]:
        return False, "Late"

    def cancel(self, asked: Asked) -> None:
        self.cancelled.append(asked.name)

    def said(self) -> list[tuple[int, str]]:
        """Exit status and output of each process; all must have ended, or be about to."""
        return [(process.wait(30.0), process.communicate()[0].strip()) for process in self.started]


class PoolRunner:
    """A `Runner` that only computes."""

    retries = False

    def __init__(self, pool: DialInPool, call: RunnerCall) -> None:
        self._pool = pool
        self._call = call

    @property
    def workers(self) -> int:
        return self._pool.workers

    def prepare(self) -> None:
        """Nothing has to start."""

    def submit(self, job: StageJob) -> Future[Manifest]:
        return self._pool.submit(job, self._call.listener, self._call.stop)

    def finished(self, outcome: StageOutcome) -> None:
        """Nothing is counted."""


def runner_of(processes: Processes) -> RunnerPlugin[PrefectWorkersConfig]:
    """The runner on these processes instead of flow runs."""

    def run(settings: PrefectWorkersConfig, call: RunnerCall, body: Callable[[Runner], None]) -> None:
        with DialInPool(call, settings, processes) as pool:
            body(PoolRunner(pool, call))

    return RunnerPlugin(settings=PrefectWorkersConfig, run=run, elsewhere=True)


def dialling_in(workers: int = 2, **settings: object) -> PrefectWorkersConfig:
    """Settings for workers that dial in to a free port of loopback."""
    given = {"work_pool": "none", "workers": workers, "address": "127.0.0.1:0", **settings}
    return PrefectWorkersConfig.model_validate(given)
