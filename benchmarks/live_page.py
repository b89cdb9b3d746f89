"""What an open live page costs a run that trains: seconds an iteration with and without it.

    python benchmarks/live_page.py --runs 3 --write

Every contender trains the default configuration anew in a store of its own. With the page, `erl-pipeline ui`
serves that store and a browser without a window (Debian's `chromium`) has the run's page open from the first
iteration on, which follows each commit. An iteration's time begins with the end of the one before; the first
ones, in which policy and page are loaded, are left out. Server, browser and training share the processor.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import measurements
from measurements import Column, Figures
from playwright.sync_api import sync_playwright

from erl_pipeline.config.loading.load import load_config
from erl_pipeline.plan.job import StageOutcome
from erl_pipeline.plan.listener import NullListener
from erl_pipeline.runs.driver import open_run
from erl_pipeline.runs.train import train

CONFIG = "configs/frozen_lake.yaml"
ALONE, OPEN = "no page", "an open page"
LEFT_OUT = 3
"""Iterations at the beginning."""
COLUMNS = (
    Column("iteration_seconds", "s an iteration", 3),
    Column("cpu_seconds", "CPU s of the run", 1),
    Column("seen", "figures that the page showed", 0),
)
_LOOK_SECONDS = 0.5


class Ends(NullListener):
    """When the last stage of each iteration ended; `going` is set when iterations begin."""

    def __init__(self) -> None:
        self.at: dict[int, float] = {}
        self.going = threading.Event()

    def stage_finished(self, title: str, outcome: StageOutcome) -> None:
        if outcome.iteration:
            self.at[outcome.iteration] = time.perf_counter()
            self.going.set()


def measure(with_page: bool, iterations: int, threads: int) -> Figures:
    """Train in this process, in a store of its own."""
    settings = [f"iterations={iterations}", f"resources.threads={threads}", "metrics=[]"]
    config, ends, seen = load_config(CONFIG, settings), Ends(), [0]
    with tempfile.TemporaryDirectory() as store, open_run(config, store, ends, threading.Event()) as opened:
        over = threading.Event()
        watching = threading.Thread(target=_watch, args=(store, config.name, ends.going, over, seen))
        if with_page:
            watching.start()
        try:
            train(opened)
        finally:
            over.set()
            ends.going.set()
            if with_page:
                watching.join()
    kept = iterations - LEFT_OUT
    return {
        "iteration_seconds": (ends.at[iterations] - ends.at[LEFT_OUT]) / kept,
        "cpu_seconds": sum(os.times()[:2]),
        "seen": float(seen[0]),
    }


def _watch(store: str, run: str, going: threading.Event, over: threading.Event, seen: list[int]) -> None:
    """Have the page open until it is over; `seen` counts its different contents."""
    going.wait()
    with _served(store) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{address}/runs/{run}")
        before = ""
        while not over.wait(_LOOK_SECONDS):
            shown = page.inner_text("#live")
            seen[0] += shown != before
            before = shown
        browser.close()


@contextmanager
def _served(store: str) -> Iterator[str]:
    """The address of a page over the store."""
    command = [sys.executable, "-m", "command_line.main", "ui", "--store", store, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield next(word for line in server.stdout for word in line.split() if word.startswith("http"))
        finally:
            server.terminate()


def main() -> None:
    parser = measurements.argument_parser(__doc__)
    parser.set_defaults(runs=3, threads=1)
    parser.add_argument("--iterations", type=int, default=20, help="of the run")
    parser.add_argument("--contenders", nargs="+", default=[OPEN, ALONE], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    if arguments.contender:
        figures = measure(arguments.contender == OPEN, arguments.iterations, arguments.threads)
        arguments.figures.write_text(json.dumps(figures))
        return
    machine = measurements.describe_machine(arguments.threads, ["torch", "fastapi", "playwright"])
    options = ["--iterations", str(arguments.iterations), "--threads", str(arguments.threads)]
    runs = measurements.alternate(arguments.contenders, arguments.runs, options)
    tables = measurements.print_table(runs, COLUMNS, OPEN)
    if arguments.write:
        note = f"{arguments.runs} runs of {arguments.iterations} iterations, medians (least to most)."
        measurements.publish("live_page", machine, runs, note, tables)


if __name__ == "__main__":
    main()
