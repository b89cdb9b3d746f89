"""`erl-pipeline`, and functions, in processes of their own, forked from one that has imported what a training
needs.

A new interpreter takes six seconds of imports before it trains. A forked command has everything else of its
own: environment variables, working folder, output, signals and process group.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pkgutil
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any

from command_line.compare.processes import IMPORTED
from tests.command_line.invoke import Result

ROOT = Path(__file__).parents[1]
PROGRAM = str(Path(sys.executable).with_name("erl-pipeline"))
_MODULES = [*IMPORTED, "erl_pipeline.runs.train", "rich.console", "tensorboardX", "tests.cold_starts"]
"""Modules that commands and stages import when they begin."""
_PACKAGES = ("storage", "erl_pipeline", "flows", "command_line")


def forking() -> ForkServerContext:
    """The context whose processes have imported what a training needs."""
    context = multiprocessing.get_context("forkserver")
    # Where the lines that tests execute are noted, these count too.
    measuring = [name for name in ("tests.line_coverage",) if name in sys.modules]
    context.set_forkserver_preload([*measuring, *_MODULES])
    return context


class Command:
    """A running command, in a process group of its own; it ends when this process does."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], path: Sequence[str]) -> None:
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `end` closes it
        reading, writing = os.pipe()
        self.stderr: IO[str] = os.fdopen(reading)
        self._process: BaseProcess = forking().Process(
            target=_run,
            args=(words, environment, path, DupFd(self._output.fileno()), DupFd(writing)),
        )
        self._process.start()
        os.close(writing)
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit status, or minus the number of the signal that ended it; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to it, not to its group."""
        os.kill(self.pid, number)

    def end(self) -> Result:
        """Wait until it ends; the result has what was not read of its errors yet."""
        errors = self.stderr.read()
        self._process.join()
        self.stderr.close()
        self._output.seek(0)
        output = self._output.read()
        self._output.close()
        assert self.returncode is not None
        return Result(self.returncode, output, errors)


def start(*words: object, path: Sequence[Path] = (), environment: Mapping[str, str] | None = None) -> Command:
    """Start `erl-pipeline` with these words.

    Args:
        path: folders that Python searches for packages first.
        environment: variables beside those of this process.
    """
    return Command(list(map(str, words)), {**os.environ, **(environment or {})}, list(map(str, path)))


def run(*words: object, path: Sequence[Path] = (), environment: Mapping[str, str] | None = None) -> Result:
    """Run it to its end."""
    return start(*words, path=path, environment=environment).end()


def call(target: str, *given: object) -> Any:
    """What a function, `module:name`, returns in a forked process. Raises EOFError where it raises; the
    traceback is printed."""
    reading, writing = forking().Pipe(duplex=False)
    process = forking().Process(target=_call, args=(target, given, writing))
    process.start()
    writing.close()
    try:
        return reading.recv()
    finally:
        process.join()
        reading.close()


def end_with_parent() -> None:
    """End this process as soon as the one that started it has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(words: list[str], environment: dict[str, str], path: list[str], output: Any, errors: Any) -> None:
    os.setsid()
    threading.Thread(target=end_with_parent, daemon=True).start()
    os.dup2(output.detach(), 1)
    os.dup2(errors.detach(), 2)
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if path:
        sys.path[:0] = path
        # These have looked for plug-ins already.
        for name in [name for name in sys.modules if name.partition(".")[0] in _PACKAGES]:
            del sys.modules[name]
    sys.argv = [PROGRAM, *words]
    from command_line.main import main

    try:
        main()
    finally:
        atexit._run_exitfuncs()  # A forked process ends without them.


def _call(target: str, given: tuple[object, ...], answer: Any) -> None:
    answer.send(pkgutil.resolve_name(target)(*given))
