"""`erl-pipeline serve` in a process of its own, with access to its server and its metrics."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.flows.records import post
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]


@dataclass
class Served:
    """A running `erl-pipeline serve`."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def address(self, name: str) -> str:
        """The address that was printed after this name."""

        def found() -> str | None:
            assert self.process.poll() is None, self.lines
            matches = [re.match(rf"{name}: +(http\S+)", line) for line in list(self.lines)]
            return next((match[1] for match in matches if match), None)

        return str(wait_for(name, found))

    @property
    def port(self) -> str:
        """The port of the server."""
        return self.address("Prefect page").rpartition(":")[2]

    def ask(self, path: str, **body: Any) -> Any:
        """The server's answer to a POST request."""
        response = post(f"{self.address('Prefect page')}/api", path, **body)
        return response.json() if response.content else None

    def flow_runs(self, run: str, flow: str) -> list[dict[str, Any]]:
        """The flow runs of a deployment that have at least begun, the oldest first."""
        names = {"name": {"any_": [run]}}, {"name": {"any_": [flow]}}
        found = self.ask(
            "flow_runs/filter", deployments=names[0], flows=names[1], sort="EXPECTED_START_TIME_ASC"
        )
        return [each for each in found if each["state_name"] != "Scheduled"]

    def log(self, flow_run: dict[str, Any]) -> list[str]:
        """The lines of a flow run's log."""
        logs = {"flow_run_id": {"any_": [flow_run["id"]]}}
        return [line["message"] for line in self.ask("logs/filter", logs=logs, sort="TIMESTAMP_ASC")]

    def metrics(self) -> dict[tuple[str, ...], float]:
        """The samples by name and label values, in the order of the labels' names."""
        text = httpx.get(self.address("Metrics"), timeout=30.0).text
        samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
        return {
            (each.name, *(each.labels[name] for name in sorted(each.labels))): each.value for each in samples
        }

    def members(self) -> list[int]:
        """Ids of the processes that it started, and of their children."""
        return [each.pid for each in psutil.Process(self.process.pid).children(recursive=True)]

    def stop(self, number: int) -> int:
        """Send a signal; returns the exit status."""
        self.process.send_signal(number)
        return self.process.wait(timeout=60.0)


def serve(home: Path, *options: str) -> Served:
    """Start `erl-pipeline serve` on free ports, with a Prefect database of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "command_line.main", "serve", "--port", "0", "--metrics-port", "0", *options],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PREFECT_HOME": str(home), "PREFECT_API_URL": ""},
        start_new_session=True,
    )
    served = Served(process)

    def read_lines() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            served.lines.append(line.rstrip("\n"))

    threading.Thread(target=read_lines, daemon=True).start()
    return served


def alive(process_ids: list[int]) -> list[int]:
    """Those of the processes that still run; a zombie does not count."""
    return [
        each for each in process_ids if psutil.pid_exists(each) and psutil.Process(each).status() != "zombie"
    ]


def ended(served: Served) -> None:
    """Make sure that the process has ended, whatever a test did."""
    if served.process.poll() is None:
        os.killpg(served.process.pid, signal.SIGKILL)
        served.process.wait()
