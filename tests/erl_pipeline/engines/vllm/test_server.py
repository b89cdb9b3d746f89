import os
import select
import signal
import subprocess
import sys
import venv
from contextlib import suppress
from pathlib import Path

import pytest

from erl_pipeline.engines.vllm import supervise
from erl_pipeline.engines.vllm.server import ManagedServer
from storage.errors import EngineError
from tests.erl_pipeline.engines.vllm.small_policies import SMALL_SERVER, save, untied_gpt2


def group_members(group: int) -> list[int]:
    """Processes of the group that still run; zombies do not count."""
    listing = subprocess.run(["ps", "-eo", "pid=,pgid=,stat="], capture_output=True, text=True, check=True)
    rows = [line.split() for line in listing.stdout.splitlines()]
    return [int(pid) for pid, pgid, state in rows if int(pgid) == group and not state.startswith("Z")]


def wait_until_empty(group: int, seconds: float) -> None:
    for pid in group_members(group):
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            # Readable once the process has ended.
            ended, _, _ = select.select([handle], [], [], seconds)
            os.close(handle)
            assert ended, pid
    assert not group_members(group)


def test_an_interpreter_without_vllm_is_told_by_the_log(tmp_path: Path) -> None:
    venv.create(tmp_path / "empty", with_pip=False)
    python = tmp_path / "empty" / "bin" / "python"
    server = ManagedServer(tmp_path, tmp_path / "server.log", executable=str(python))
    with pytest.raises(EngineError, match=r"(?s)ended before it was ready.*No module named 'vllm'"):
        server.start()
    assert not server.running


@pytest.mark.vllm
def test_a_deadline_ends_a_start(tmp_path: Path) -> None:
    seen: list[float] = []
    server = ManagedServer(
        save(untied_gpt2(), tmp_path / "checkpoint"),
        tmp_path / "server.log",
        environment=SMALL_SERVER,
        startup_seconds=2.0,
        on_progress=lambda seconds, line: seen.append(seconds),
    )
    with pytest.raises(EngineError, match=r"not ready within 2 s \(startup_seconds\)"), server:
        pass
    assert not server.running
    assert seen


def supervised(script: str) -> subprocess.Popen[str]:
    """A shell script under supervision, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-I", supervise.__file__, "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_closing_the_pipe_ends_the_whole_group() -> None:
    process = supervised("sleep 100 & echo started; wait")
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdout.readline()
    assert len(group_members(process.pid)) == 3  # the supervisor, the shell and sleep
    process.stdin.close()
    wait_until_empty(process.pid, seconds=5.0)
    process.wait()
    process.stdout.close()


def test_what_a_dead_server_left_behind_is_ended() -> None:
    process = supervised("sleep 100 & exit 3")
    wait_until_empty(process.pid, seconds=5.0)
    assert process.wait() == -signal.SIGKILL
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


def test_a_killed_supervisor_takes_its_command_along() -> None:
    process = supervised("echo started; exec sleep 100")
    assert process.stdout is not None
    process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    wait_until_empty(process.pid, seconds=5.0)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()
