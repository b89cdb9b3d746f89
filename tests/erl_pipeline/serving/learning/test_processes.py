"""The same function on many values, in several processes."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from erl_pipeline.serving.learning.processes import mapping
from storage.errors import DamagedRecord, StoreError
from storage.serving.traffic import Record, read_record
from tests.waiting import wait_for

_SCRIPT = """
import os, signal, sys
from erl_pipeline.serving.learning.processes import mapping

def process(_):
    return os.getpid()

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with mapping(2) as each:
        found = set()
        while len(found) < 2:
            found |= set(each(process, range(8)))
        print(*found, flush=True)
        sys.stdin.read()
"""


def test_results_come_in_the_order_of_the_values_and_other_processes_raise_as_this_one_does() -> None:
    with mapping(2) as map_values:
        assert list(map_values(abs, range(-20, 0))) == list(range(20, 0, -1))
        with pytest.raises(DamagedRecord, match="line 3 is not as it was written"):
            list(map_values(_read, [3]))
    with mapping(1) as map_values:
        assert list(map_values(abs, [-1])) == [1]


@pytest.mark.parametrize("processes", [1, 2])
def test_cycles_are_looked_for_as_often_as_before_once_the_block_has_ended(processes: int) -> None:
    before = gc.get_threshold()
    with mapping(processes):
        assert gc.get_threshold()[0] > before[0]
    assert gc.get_threshold() == before


def test_a_process_that_is_killed_is_told() -> None:
    with pytest.raises(StoreError, match="was ended, perhaps for want of memory"), mapping(2) as map_values:
        list(map_values(os._exit, [1]))


def _read(line: int) -> Record:
    return read_record(b"{}", f"line {line}")


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_the_processes_end_with_the_one_that_began_them(tmp_path: Path, sent: signal.Signals) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
        text=True,
    ) as begun:
        assert begun.stdout is not None
        assert begun.stderr is not None
        pids = [int(pid) for pid in begun.stdout.readline().split()]
        assert len(pids) == 2

        # A terminal sends Ctrl-C to all of them.
        (os.killpg if sent == signal.SIGINT else os.kill)(begun.pid, sent)

        said = begun.stderr.read()
    # It is the interrupted process alone that says so.
    assert said.count("Traceback") == (sent == signal.SIGINT)
    wait_for("the end of its processes", lambda: not any(map(psutil.pid_exists, pids)), patience=30.0)
