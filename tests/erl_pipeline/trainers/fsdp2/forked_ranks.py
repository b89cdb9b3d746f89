"""A launcher and ranks that are forked from a process that has imported what they need.

As new interpreters, the launcher and then its ranks import torch, which takes longer than most of what the
tests have them do. `test_rank_group.py` and `test_nodes.py` start some as users do.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

import pytest
import torch

from erl_pipeline.trainers.fsdp2 import launcher
from tests import forked
from tests.waiting import wait_for

_CODE = "ERL_TEST_CODE_OF_RANKS"


@contextmanager
def forked_ranks(*code: str) -> Iterator[None]:
    """Fork the launchers that are started inside this context, and their ranks, which run this code first."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(_CODE, "\n".join(code))
        patched.setattr(launcher, "subprocess", _Subprocess)
        yield


class _Launcher:
    """In place of the `subprocess.Popen` that the launcher is started with."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        stdin: int,
        stdout: Any,
        stderr: int,
        pass_fds: Sequence[int],
        env: Mapping[str, str],
        process_group: int,
    ) -> None:
        assert list(words[1:3]) == ["-m", launcher.LAUNCHER_MODULE]
        assert (stdin, stderr, process_group) == (subprocess.PIPE, subprocess.STDOUT, 0)
        reading, writing = os.pipe()
        self.stdin = os.fdopen(writing, "wb")
        given = [DupFd(each) for each in (reading, stdout.fileno(), *pass_fds)]
        self._process = forked.forking().Process(target=_launch, args=(words[3], words[4], dict(env), given))
        self._process.start()
        os.close(reading)
        self.kill = self._process.kill

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(launcher.LAUNCHER_MODULE, timeout or 0.0)
        return self._process.exitcode


class _Subprocess:
    """What the launcher's module uses of `subprocess`."""

    PIPE, STDOUT, TimeoutExpired = subprocess.PIPE, subprocess.STDOUT, subprocess.TimeoutExpired
    Popen = _Launcher


def _launch(launch: str, folder: str, environment: dict[str, str], given: Sequence[Any]) -> None:
    """Be the launcher, in a forked process."""
    from pydantic import TypeAdapter
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    # Imported here, once for all ranks.
    import erl_pipeline.trainers.fsdp2.learner
    import erl_pipeline.trainers.fsdp2.rank  # noqa: F401

    gc.freeze()  # Else each collection would copy what the ranks share.
    os.setpgid(0, 0)
    reading, output, *listening = (each.detach() for each in given)
    _become(environment, reading, output, output)
    SubprocessHandler._popen = _fork_rank  # type: ignore[method-assign, assignment]
    told = TypeAdapter(launcher.Launch).validate_json(launch)
    try:
        status = launcher.main(told, Path(folder), listening[0] if listening else None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _become(environment: Mapping[str, str], *files: int) -> None:
    """Have this environment and these files as standard input, output and error."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    sys.stdin = os.fdopen(0, closefd=False)
    os.environ.clear()
    os.environ.update(environment)


class _Rank:
    """In place of the `subprocess.Popen` of a rank, a child of the launcher."""

    def __init__(self, process: int) -> None:
        self.pid = process
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._ended(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        if timeout is not None:
            wait_for("the end of a rank", lambda: self.poll() is not None, patience=timeout, interval=0.01)
        status = self._ended(0)
        assert status is not None
        return status

    def _ended(self, options: int) -> int | None:
        if self.returncode is None:
            process, status = os.waitpid(self.pid, options)
            if process:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def _fork_rank(handler: Any, words: Sequence[str], environment: Mapping[str, str]) -> _Rank:
    """In place of `SubprocessHandler._popen`."""
    from erl_pipeline.trainers.fsdp2 import rank

    if process := os.fork():
        return _Rank(process)
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        _become(environment, 0, handler._stdout.fileno(), handler._stderr.fileno())
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
        exec(environment[_CODE], {})
        rank.main(Path(words[-1]))
    finally:
        os._exit(rank.FAILED)
