from __future__ import annotations

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
from erl_pipeline.engines.vllm.server import ManagedServer, last_lines, reasons
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


def supervised(script: str, *supervisor: str) -> subprocess.Popen[str]:
    """A shell script under supervision, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, *(supervisor or ("-I", supervise.__file__)), "sh", "-c", script],
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


IMPATIENT = """
import sys
from erl_pipeline.engines.vllm import supervise
supervise._GRACE_SECONDS = 0.2
supervise.main(sys.argv[1:])
"""


def test_the_supervisor_ends_after_all_processes_even_those_that_refuse_to() -> None:
    """Memory on a GPU is free when the last of them is gone; then the next server may start."""
    refuse = 'trap "" TERM; echo $$; while :; do sleep 1; done'
    process = supervised(f"setsid sh -c '{refuse}' & trap '' TERM; wait", "-c", IMPATIENT)
    assert process.stdout is not None
    assert process.stdin is not None
    left_the_group = int(process.stdout.readline())
    process.stdin.close()
    process.wait()
    assert not Path(f"/proc/{left_the_group}").exists()
    process.stdout.close()


def test_what_a_server_leaves_in_its_temporary_folder_is_removed_with_it() -> None:
    process = supervised('touch "$TMPDIR/socket"; echo "$TMPDIR"')
    assert process.stdout is not None
    assert process.stdin is not None
    folder = Path(process.stdout.readline().strip())
    assert folder.name.startswith("erl-vllm-")
    process.wait()
    assert not folder.exists()
    process.stdin.close()
    process.stdout.close()


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


# The log of vLLM 0.32 when a worker gets no memory, much shortened.
FAILED = """\
(APIServer pid=1) WARNING 11-21 23:06:45 [base.py:380] ValueError: Tokenizer not available
(Worker pid=3) ERROR 11-21 23:06:52 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker pid=3) ERROR 11-21 23:06:52 [multiproc_executor.py:1063] RuntimeError: can't allocate memory
(Worker pid=3) ERROR 11-21 23:06:52 [multiproc_executor.py:1063] RuntimeError: can't allocate memory
(EngineCore pid=2) ERROR 11-21 23:06:52 [core.py:1512] RuntimeError: Worker failed with error \
'can't allocate memory', please check the stack trace above for the root cause
torch.OutOfMemoryError: CUDA out of memory
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def test_reasons_are_what_failed_first_without_its_echoes(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(FAILED)
    assert reasons(log, 0) == [
        "RuntimeError: can't allocate memory",
        "torch.OutOfMemoryError: CUDA out of memory",
    ]


def test_reasons_of_an_earlier_start_do_not_count(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(FAILED + "(APIServer pid=9) INFO 11-21 23:07:00 [launcher.py:195] Route: /ping\n")
    assert reasons(log, len(FAILED.encode())) == []


def test_a_worker_that_was_killed_is_a_reason(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    killed = "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor."
    log.write_text(f"(EngineCore pid=2) ERROR 11-21 23:02:41 [multiproc_executor.py:315] {killed}\n")
    assert reasons(log, 0) == [killed]


def test_an_engine_that_was_killed_is_a_reason(tmp_path: Path) -> None:
    """It has written no exception that the API server's would repeat."""
    log = tmp_path / "server.log"
    killed = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
    log.write_text(f"(APIServer pid=1) {killed}\n{killed}{{'EngineCore': -9}}\n{killed}{{'EngineCore': 1}}\n")
    assert reasons(log, 0) == [f"{killed}{{'EngineCore': -9}}"]


def test_the_last_lines_of_a_long_log(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("".join(f"line {number} {'x' * 90}\n" for number in range(2000)))
    lines = last_lines(log).splitlines()
    assert len(lines) == 30
    assert lines[0].startswith("line 1970 ")


def test_no_log_yet(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "server.log") == "(no log)"
    assert reasons(tmp_path / "server.log", 0) == []
