"""Prefect's part of a tiny iteration: what it takes more with Prefect than with `--no-prefect`.

    python benchmarks/prefect_part.py --runs 5 --iterations 7 --threads 1 --write

One process continues two runs in turn, one with Prefect (stages in a thread) and one without; who begins
alternates. A Prefect server, the one of `erl-pipeline serve`, runs all the time in a process of its own. On a
machine with other work the processor time says more than the seconds. That of the driver is from the end of
the first iteration of a round to the end of its last one. That of the server is all that it took in a round,
also for the beginning and the end of the flow run, and for its own services.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import measurements
import psutil
from measurements import Column, Figures

from erl_pipeline.config.loading import load_config
from erl_pipeline.plan.stage import Listener, StageOutcome
from erl_pipeline.runs.driver import open_run
from erl_pipeline.runs.train import train
from flows.stage_tasks import prepare_for_prefect

CONFIG = "configs/cluster_ray.yaml"
RUNNERS = {"with Prefect": "{type: prefect}", "without": "{type: in_process}"}
COLUMNS = (
    Column("iteration_seconds", "s an iteration", 3),
    Column("driver_cpu_seconds", "CPU s of the driver", 3),
    Column("server_cpu_seconds", "CPU s of the server", 3),
)
PART = "more with Prefect"
_SETTLE_SECONDS = 1.0


class Ends(Listener):
    """Records when the last stage of each iteration ended, and the processor time until then."""

    def __init__(self) -> None:
        self.ends: dict[int, tuple[float, float]] = {}

    def stage_finished(self, title: str, outcome: StageOutcome) -> None:
        self.ends[outcome.iteration or 0] = (time.perf_counter(), time.process_time())


def train_to(iterations: int, store: str, runner: str, threads: int) -> Ends:
    """Continue the run in a store to this many iterations."""
    settings = [f"runner={runner}", f"iterations={iterations}", "metrics=[]", f"resources.threads={threads}"]
    ends = Ends()
    with open_run(load_config(CONFIG, settings), store, ends, threading.Event()) as opened:
        train(opened)
    return ends


def measure(stored: int, iterations: int, store: str, runner: str, threads: int) -> Figures:
    """Continue a run that has `stored` iterations; the figures are those of one iteration."""
    server = psutil.Process(int(os.environ["SERVER_PID"]))
    before = _cpu_seconds(server)
    ends = train_to(stored + iterations, store, runner, threads).ends
    time.sleep(_SETTLE_SECONDS)
    server_seconds = _cpu_seconds(server) - before
    times = [ends[number] for number in range(stored + 1, stored + iterations + 1)]
    return {
        "iteration_seconds": statistics.median(after[0] - one[0] for one, after in pairwise(times)),
        "driver_cpu_seconds": (times[-1][1] - times[0][1]) / (iterations - 1),
        "server_cpu_seconds": server_seconds / iterations,
    }


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def with_server() -> int:
    """Run this script again beside a server; Prefect reads the address when it is imported."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["PREFECT_HOME"] = home
        prepare_for_prefect()
        from flows.local_server import scheduling_server

        with scheduling_server("127.0.0.1", 0, Path(home) / "server.log") as (url, _):
            children = psutil.Process().children()
            (server,) = (each for each in children if "flows.server_process" in each.cmdline())
            beside = {**os.environ, "PREFECT_API_URL": url, "SERVER_PID": str(server.pid)}
            return subprocess.call([sys.executable, *sys.argv], env=beside)


def main() -> None:
    parser = measurements.argument_parser(__doc__)
    parser.set_defaults(runs=6, threads=1)
    parser.add_argument("--iterations", type=int, default=8, help="of each run in a round")
    arguments = measurements.parse_arguments(parser)
    if "SERVER_PID" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
        sys.exit(with_server())
    machine = measurements.describe_machine(arguments.threads, ["torch", "prefect"])
    runs: dict[str, list[Figures]] = {name: [] for name in (*RUNNERS, PART)}
    with tempfile.TemporaryDirectory() as folder:
        stores = {name: str(Path(folder) / str(number)) for number, name in enumerate(RUNNERS)}
        for name, runner in RUNNERS.items():  # also loads what the later iterations need
            train_to(1, stores[name], runner, arguments.threads)
        for round_ in range(arguments.runs):
            stored = 1 + round_ * arguments.iterations
            for name in list(RUNNERS)[:: 1 if round_ % 2 == 0 else -1]:
                given = (stored, arguments.iterations, stores[name], RUNNERS[name], arguments.threads)
                runs[name].append(measure(*given))
            with_prefect, without = (runs[name][-1] for name in RUNNERS)
            runs[PART].append({figure: with_prefect[figure] - without[figure] for figure in without})
            print(f"round {round_ + 1}, load {os.getloadavg()[0]:.1f}: {runs[PART][-1]}", flush=True)
    machine["load_after"] = round(os.getloadavg()[0], 2)
    tables = measurements.print_table(runs, COLUMNS, "with Prefect")
    if arguments.write:
        note = f"{arguments.runs} rounds of {arguments.iterations} iterations, medians (least to most)."
        measurements.publish("prefect_part", machine, runs, note, tables)


if __name__ == "__main__":
    main()
