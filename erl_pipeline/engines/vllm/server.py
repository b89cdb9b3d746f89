"""A vLLM server that belongs to this process: started, watched, restarted and stopped."""

from __future__ import annotations

import http.client
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from storage.errors import EngineError
from storage.filesystem import open_to_write

_TAIL_LINES = 30
_TAIL_BYTES = 32768
_SEARCHED_BYTES = 2**20
_MOST_REASONS = 3

# Exceptions, with or without what vLLM writes before a line, and workers that a signal ended: with -9 the
# kernel ends a process whose memory it needs.
_REASON = re.compile(
    r"^(?:\([^)]* pid=\d+\) ERROR [^\[]*\[[^\]]*\] )?"
    r"([A-Za-z_][\w.]*(?:Error|Exception): .+|Worker proc .* died unexpectedly \(exit code: -\d+\).*)$"
)
# Such a line only repeats an exception of another process, which is further up in the log; a process that a
# signal ended has written none.
_ECHO = re.compile(r"root cause(?!.* Failed core proc\(s\): \{.*: -\d)")


def last_lines(log: Path) -> str:
    if not log.exists():
        return "(no log)"
    return "\n".join(_lines(log, _TAIL_BYTES)[-_TAIL_LINES:])


def reasons(log: Path, begin: int) -> list[str]:
    """The first exceptions that the server's processes reported after a place in the log, each once.

    When a worker fails, vLLM's other processes fill the end of the log with exceptions of their own, which
    say only that it failed. `begin`: in bytes; where the log of the server's last start begins.
    """
    if not log.exists():
        return []
    found = (_REASON.match(line) for line in _lines(log, min(_SEARCHED_BYTES, log.stat().st_size - begin)))
    told = dict.fromkeys(match[1] for match in found if match is not None and not _ECHO.search(match[1]))
    return list(told)[:_MOST_REASONS]


def _lines(log: Path, most_bytes: int) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
        return file.read().decode("utf-8", errors="replace").splitlines()


MODEL_NAME = "policy"
_POLL_SECONDS = 0.25

OnProgress = Callable[[float, str], None]
"""Called while a server starts: seconds so far and the last line of its log."""


class ManagedServer:
    """vLLM's OpenAI-compatible server on the loopback interface, on a free port, with a random key.

    As a context manager it is stopped however the block ends; when this process is killed, the server's
    process group ends too. The developer endpoints are on, since new weights are read through them; like
    `/health` they ask for no key, so every user of this machine can reach them.

    Args:
        checkpoint_folder: `save_pretrained` folder to serve at the start.
        log_file: gets all output of all starts; its folder must exist.
        arguments: further arguments of the server, such as `("--dtype", "float32")`.
        environment: variables added to those of this process.
        executable: Python interpreter that has vLLM.
        startup_seconds: deadline of one start.
        on_progress: called about once a second while a start is awaited.
    """

    def __init__(
        self,
        checkpoint_folder: Path,
        log_file: Path,
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        executable: str = sys.executable,
        startup_seconds: float = 600.0,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.checkpoint_folder = checkpoint_folder
        self.api_key = secrets.token_hex(16)
        self._port = _free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._log_file = log_file
        self._arguments = tuple(arguments)
        self._environment = dict(environment or {})
        self._executable = executable
        self._startup_seconds = startup_seconds
        self._on_progress = on_progress
        self._process: subprocess.Popen[bytes] | None = None
        self._changing = threading.Lock()
        self._stopped = False
        self._log_begin = 0

    def __enter__(self) -> ManagedServer:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start and wait until requests are answered.

        Raises `EngineError`, with the log's last lines, when the server ends or the deadline passes.
        """
        with self._changing:
            if self._process is not None:
                raise RuntimeError("the server is started already")
            if self._stopped:
                raise EngineError("the vLLM server was stopped")
            self._process = process = self._start_process()
        try:
            self._wait_until_ready(process)
        except BaseException:
            self._end_process(process)
            raise

    def end(self) -> None:
        """End the server and all its processes; `restart` starts it again."""
        process = self._process
        if process is not None:
            self._end_process(process)

    def restart(self, checkpoint_folder: Path) -> None:
        """End what is left of the server and start it again, on the same port, with this checkpoint."""
        self.end()
        self.checkpoint_folder = checkpoint_folder
        self.start()

    def stop(self) -> None:
        """End the server and all its processes for good, also while another thread awaits its start."""
        with self._changing:
            self._stopped = True
            process = self._process
        if process is not None:
            self._end_process(process)

    @property
    def running(self) -> bool:
        """Whether its process is alive; that of a server that hangs is alive too."""
        return self.process_id is not None

    @property
    def process_id(self) -> int | None:
        """The process id of its supervisor, another one after each start; None while it does not run."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def failure_log(self) -> str:
        """Why its processes failed since the last start, as far as the log says, and the end of the log."""
        told = [f"  {reason}" for reason in reasons(self._log_file, self._log_begin)]
        return "\n".join([*told, f"last log lines, of {self._log_file}:", last_lines(self._log_file)])

    def _start_process(self) -> subprocess.Popen[bytes]:
        supervisor = Path(__file__).with_name("supervise.py")
        command = [sys.executable, "-I", str(supervisor), self._executable, *self._server_command()]
        environment = {
            **os.environ,
            # Weights in pages of 2 MiB where the kernel has them: fewer page faults when they are replaced.
            # If this were the first variable, vLLM's processes could not change their titles.
            "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
            # Not an argument: every user of the machine can read those.
            "VLLM_API_KEY": self.api_key,
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            # Seconds. After vLLM's own five, a server that is late ends a connection although a request has
            # come on it: timers go first in its event loop.
            "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75",
            **self._environment,
        }
        with open_to_write(self._log_file, "ab") as log:
            self._log_begin = log.tell()
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def _end_process(self, process: subprocess.Popen[bytes]) -> None:
        with self._changing:
            if self._process is process:
                self._process = None
        assert process.stdin is not None
        # A closed pipe tells the supervisor that this process ended; it is also how we stop the server.
        process.stdin.close()
        process.wait()
        # Where the supervisor was killed itself, engine processes may be left in its group.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def _server_command(self) -> list[str]:
        return [
            "-m",
            "vllm.entrypoints.openai.api_server",
            f"--model={self.checkpoint_folder}",
            f"--served-model-name={MODEL_NAME}",
            "--host=127.0.0.1",
            f"--port={self._port}",
            "--logprobs-mode=processed_logprobs",
            "--enable-prefix-caching",
            # Token ids in and out: no tokenizer, and no sampling defaults of the checkpoint.
            "--tokens-only",
            "--skip-tokenizer-init",
            "--generation-config=vllm",
            "--disable-uvicorn-access-log",
            *self._arguments,
        ]

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        started = time.monotonic()
        reported = 0.0
        while True:
            elapsed = time.monotonic() - started
            if process.poll() is not None:
                raise EngineError(f"the vLLM server ended before it was ready\n{self.failure_log()}")
            # With the key, so that a stranger's server on this port is not taken for ours.
            if self._answers():
                return
            if elapsed > self._startup_seconds:
                raise EngineError(
                    f"the vLLM server was not ready within {self._startup_seconds:g} s (startup_seconds)\n"
                    f"{self.failure_log()}"
                )
            if self._on_progress is not None and elapsed - reported >= 1.0:
                reported = elapsed
                self._on_progress(elapsed, last_lines(self._log_file).rpartition("\n")[2])
            time.sleep(_POLL_SECONDS)

    def _answers(self) -> bool:
        # Not urllib, which would send this through a proxy that the environment names.
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5.0)
        with closing(connection), suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {self.api_key}"})
            return connection.getresponse().status == 200
        return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
