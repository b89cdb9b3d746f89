from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from command_line.interruption import SAME_REQUEST_SECONDS, StopRequest, call_interruptibly
from storage.runs.run import RunStore
from tests import forked
from tests.command_line.invoke import FinishedRun, invoke
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]


def start(*words: object) -> subprocess.Popen[str]:
    """`python -m WORDS`, in a process of its own whose standard error is read line by line."""
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def test_work_that_nobody_stops_gives_its_result_and_its_errors() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert call_interruptibly(lambda: 7, StopRequest(), print) == 7
    with pytest.raises(ZeroDivisionError):
        call_interruptibly(lambda: 1 // 0, StopRequest(), print)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_lets_the_work_end_itself(number: signal.Signals, status: int) -> None:
    process = start("tests.command_line.stubborn_work", "obeys")
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert output.splitlines() == [
        "Stopping after the commit in progress; press Ctrl-C again to stop immediately.",
        f"finished what was in flight {status}",
    ]
    assert process.returncode == 0


def test_the_second_signal_ends_the_process_at_once() -> None:
    process = start("tests.command_line.stubborn_work", "ignores")
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline().startswith("Stopping")

    def has_ended() -> bool:
        process.send_signal(signal.SIGINT)
        return process.poll() is not None

    wait_for("the end of the process", has_ended, interval=SAME_REQUEST_SECONDS)
    assert process.returncode == 130


def test_a_signal_that_timeout_sends_twice_is_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """`timeout` signals the process and then its group; a busy machine does not merge the two."""
    monkeypatch.setattr(os, "_exit", lambda status: pytest.fail(f"ended with status {status}"))
    stop, told = StopRequest(), list[str]()

    def work() -> None:
        handler = signal.getsignal(signal.SIGTERM)
        assert callable(handler)
        handler(signal.SIGTERM, None)
        handler(signal.SIGTERM, None)

    call_interruptibly(work, stop, told.append)
    assert (len(told), stop.exit_status) == (1, 143)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "words"),
    [(signal.SIGINT, 130, []), (signal.SIGTERM, 143, ["--no-prefect"])],
    ids=["SIGINT with Prefect", "SIGTERM without"],
)
def test_a_run_that_is_stopped_says_what_is_kept_and_goes_on_to_the_same_artifacts(
    finished: FinishedRun, tmp_path: Path, number: signal.Signals, status: int, words: list[str]
) -> None:
    store = tmp_path / "store"
    command = ["train", str(finished.config), "--store", str(store), "--iterations", "50", *words]
    prefect = {"PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_API_URL": ""}
    process = forked.start(*command, environment=prefect)
    shown = ""
    while "iteration 1/50    generate_rollouts" not in shown:
        line = process.stderr.readline()
        assert line, shown
        shown += line
    process.send_signal(number)
    stopped = process.end()
    assert stopped.status == status, shown + stopped.errors
    last = stopped.errors.splitlines()[-1]
    assert last.startswith("Stopped. Run small is kept through iteration ")
    assert " artifacts in all; continue with: " in last
    assert last.endswith(shlex.join(command))
    assert "Traceback" not in stopped.errors

    assert invoke(*command, "--iterations", "2", "--no-prefect").status == 0
    assert artifact_ids(store) >= artifact_ids(finished.store)


def artifact_ids(store: Path) -> set[tuple[str, str]]:
    return {(entry.stage, entry.artifact_id) for entry in RunStore(str(store)).open("small").stages()}
