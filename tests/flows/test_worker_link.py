"""The connection between a worker and the processes of its flow runs, with real processes."""

from __future__ import annotations

import logging
import queue
import signal
import subprocess
import sys
from logging.handlers import QueueHandler
from pathlib import Path

import pytest

from erl_pipeline.plan.stage import StageOutcome
from flows.worker_link import (
    FlowEnded,
    FlowStarted,
    Message,
    StageEnded,
    link_to_worker,
    listen_to_flow_runs,
)

ROOT = Path(__file__).parents[2]
OUTCOME = StageOutcome(
    stage="evaluate",
    kind="evaluation",
    iteration=2,
    key="",
    artifact_id="a" * 32,
    reused=False,
    seconds=1.5,
    making_seconds=1.4,
    made_by="lake",
    counters={"episodes": 4},
    metrics={"greedy_success": 0.5},
)

FLOW_RUN = """
import signal, sys
from flows.worker_link import FlowStarted, link_to_worker
with link_to_worker(sys.argv[1]) as link:
    link.send(FlowStarted("train", "lake"))
    signal.pause()
"""

WORKER = f"""
import signal, subprocess, sys
from flows.worker_link import listen_to_flow_runs
with listen_to_flow_runs(lambda message: print(flow_run.pid, flush=True)) as (_, address):
    flow_run = subprocess.Popen([sys.executable, "-c", {FLOW_RUN!r}, address])
    signal.pause()
"""


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def test_what_a_flow_run_says_arrives_as_it_was_said() -> None:
    received: queue.Queue[Message] = queue.Queue()
    said: list[Message] = [
        FlowStarted("train", "lake"),
        StageEnded("lake", 2, OUTCOME),
        FlowEnded("train", "lake", "completed"),
    ]
    with listen_to_flow_runs(received.put) as (_, address), link_to_worker(address) as link:
        for message in said:
            link.send(message)
        assert [received.get(timeout=30.0) for _ in said] == said


def test_a_flow_run_that_is_killed_is_reported() -> None:
    received: queue.Queue[Message] = queue.Queue()
    with listen_to_flow_runs(received.put) as (_, address):
        flow_run = python(FLOW_RUN, address)
        assert received.get(timeout=60.0) == FlowStarted("train", "lake")
        flow_run.kill()
        assert received.get(timeout=60.0) == FlowEnded("train", "lake", "killed")
        flow_run.wait()


def test_flow_runs_that_are_asked_to_stop_get_a_signal() -> None:
    received: queue.Queue[Message] = queue.Queue()
    with listen_to_flow_runs(received.put) as (lines, address):
        early = python(FLOW_RUN, address)
        assert received.get(timeout=60.0) == FlowStarted("train", "lake")
        lines.ask_to_stop()
        assert early.wait(timeout=60.0) == -signal.SIGTERM
        assert python(FLOW_RUN, address).wait(timeout=60.0) == -signal.SIGTERM


def test_a_flow_run_ends_when_its_worker_is_killed() -> None:
    worker = python(WORKER)
    assert worker.stdout is not None
    assert int(worker.stdout.readline()) > 0
    worker.kill()
    worker.wait()
    # The flow run holds the other end of this pipe until it ends.
    assert worker.stdout.read() == ""


def test_a_flow_run_whose_worker_is_gone_does_not_begin() -> None:
    with listen_to_flow_runs(lambda message: None) as (_, address):
        pass
    assert python(FLOW_RUN, address).wait(timeout=60.0) == 1


def test_without_a_worker_of_ours_nothing_is_said() -> None:
    with link_to_worker(None) as link:
        link.send(FlowStarted("train", "lake"))


def test_only_this_user_can_reach_the_worker() -> None:
    with listen_to_flow_runs(lambda message: None) as (_, address):
        assert Path(address).parent.stat().st_mode & 0o077 == 0


def test_a_message_that_cannot_be_handled_stops_no_flow_run(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    log = logging.getLogger("prefect.erl_pipeline")
    monkeypatch.setattr(log, "handlers", [QueueHandler(logged)])
    handled: queue.Queue[Message] = queue.Queue()

    def handle(message: Message) -> None:
        if isinstance(message, FlowStarted):
            raise OSError(28, "No space left on device")
        handled.put(message)

    ended = StageEnded("lake", 2, OUTCOME)
    with listen_to_flow_runs(handle) as (_, address), link_to_worker(address) as link:
        link.send(FlowStarted("train", "lake"))
        for _ in range(2000):  # more than fits into the socket
            link.send(ended)
        assert [handled.get(timeout=30.0) for _ in range(2000)] == [ended] * 2000
    assert logged.get_nowait().message.startswith("A message of a flow run could not be handled")
    assert logged.empty()
