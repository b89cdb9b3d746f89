from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from storage.errors import InputError, RunBusy, StoreError
from storage.runs.run import RunStore

HOLDER = """
import signal, sys
from storage.runs.run import RunStore
with RunStore(sys.argv[1]).open("run").lock():
    print("locked", flush=True)
    signal.pause()
"""


def test_a_run_is_found_by_name_with_its_settings(store_uri: str) -> None:
    runs = RunStore(store_uri)
    assert runs.list() == []
    runs.create("second", {"seed": 2})
    runs.create("first", {"seed": 1, "rate": 1e-05, "memory": None})
    later = RunStore(store_uri)
    assert later.list() == ["first", "second"]
    assert later.open("first").config == {"seed": 1, "rate": 1e-05, "memory": None}


def test_unknown_taken_and_bad_names_are_refused(store_uri: str) -> None:
    runs = RunStore(store_uri)
    with pytest.raises(InputError, match=r"no run lake .* Its runs: none\."):
        runs.open("lake")
    runs.create("lake", {})
    with pytest.raises(InputError, match=r"no run lakes .* Did you mean lake\?"):
        runs.open("lakes")
    with pytest.raises(InputError, match="run lake exists already"):
        runs.create("lake", {})
    with pytest.raises(InputError, match=r"'\.\./lake' cannot name a run"):
        runs.create("../lake", {})


def test_settings_are_replaced_until_something_is_recorded(store_uri: str) -> None:
    run = RunStore(store_uri).create("run", {"seed": 1})
    with run.lock():
        run.begin_again({"seed": 2})
    assert run.config == RunStore(store_uri).open("run").config == {"seed": 2}
    run.record(None, "bootstrap", "a", kind="checkpoint", reused=False, seconds=2.0)
    with run.lock(), pytest.raises(InputError, match="run run has artifacts already"):
        run.begin_again({"seed": 3})
    assert RunStore(store_uri).open("run").config == {"seed": 2}


def test_the_ledger_keeps_the_latest_entry_of_each_stage(store_uri: str) -> None:
    run = RunStore(store_uri).create("run", {})
    run.record(None, "bootstrap", "a", kind="checkpoint", reused=False, seconds=2.0)
    run.record(1, "rollout_shard", "b", kind="trajectories", key="0000", reused=False, seconds=1.0)
    run.record(1, "rollout_shard", "c", kind="trajectories", key="0001", reused=False, seconds=1.0)
    run.record(1, "rollout_shard", "d", kind="trajectories", key="0000", reused=True, seconds=0.0)
    entries = RunStore(store_uri).open("run").stages()
    assert [(e.iteration, e.stage, e.key, e.artifact_id, e.reused, e.seconds) for e in entries] == [
        (None, "bootstrap", "", "a", False, 2.0),
        (1, "rollout_shard", "0000", "d", True, 0.0),
        (1, "rollout_shard", "0001", "c", False, 1.0),
    ]


def test_a_line_cut_short_by_a_kill_is_ignored_and_then_cut_off(tmp_path: Path) -> None:
    run = RunStore(str(tmp_path)).create("run", {})
    run.record(1, "evaluate", "a", kind="evaluation", reused=False, seconds=1.0)
    ledger = tmp_path / "runs" / "run" / "ledger.jsonl"
    whole = ledger.read_bytes()
    ledger.write_bytes(whole + whole[:-20])
    assert [entry.artifact_id for entry in run.stages()] == ["a"]
    run.record(2, "evaluate", "b", kind="evaluation", reused=False, seconds=1.0)
    assert [entry.artifact_id for entry in run.stages()] == ["a", "b"]
    assert ledger.read_bytes().startswith(whole + b'{"iteration":2')


def test_a_line_that_is_no_entry_is_named(tmp_path: Path) -> None:
    run = RunStore(str(tmp_path)).create("run", {})
    run.record(1, "evaluate", "a", kind="evaluation", reused=False, seconds=1.0)
    with (tmp_path / "runs" / "run" / "ledger.jsonl").open("a") as file:
        file.write("{}\n")
    with pytest.raises(StoreError, match=r"ledger\.jsonl, line 2 is not a ledger entry"):
        run.stages()


def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    run = RunStore(str(tmp_path)).create("run", {})
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(RunBusy, match=f"by process {holder.pid} on {socket.gethostname()}"), run.lock():
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with run.lock():
        pass


def test_the_lock_is_free_again_after_an_error(store_uri: str) -> None:
    run = RunStore(store_uri).create("run", {})
    with pytest.raises(ZeroDivisionError), run.lock():
        raise ZeroDivisionError
    with run.lock():
        pass
