"""What an open live page costs training: the time of an iteration with the page of the run open, and without.

    python benchmarks/live_page.py --runs 5 --write

Both contenders continue copies of one run, which the script trains first. For a live page, `erl-pipeline ui`
serves the store, and a client does what the page's script does in a browser. It reads the events of the run,
and after each commit it fetches the live part and the curves. Drawing them is not measured, since the browser
mostly runs on another machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import httpx
import measurements
from measurements import Column, Figures
from runner_overhead import Times

from erl_pipeline.config.loading import load_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.stage import Listener
from erl_pipeline.runs.driver import open_run
from erl_pipeline.runs.train import train

BESIDE, ALONE = "beside a live page", "alone"
CONFIG, RUN, STORED = "configs/frozen_lake.yaml", "watched", 5
COLUMNS = (Column("iteration_seconds", "s an iteration", 3), Column("fetches", "answers of the page", 0))


def configuration(iterations: int, threads: int) -> RunConfig:
    """The run, with this many iterations."""
    settings = [f"name={RUN}", f"iterations={iterations}", "runner={type: in_process}", "metrics=[]"]
    return load_config(CONFIG, [*settings, f"resources.threads={threads}"])


def continue_training(store: Path, iterations: int, threads: int, *, with_page: bool) -> Figures:
    """Median seconds of an iteration, and how many answers of the page the client has read."""
    times, config = Times(), configuration(STORED + iterations, threads)
    answers = store.with_name("answers")
    with open_run(config, str(store), times, threading.Event()) as opened:
        if with_page:
            with watched(store, answers):
                train(opened)
        else:
            train(opened)
    ends = [times.ends[number] for number in range(STORED + 1, STORED + iterations + 1)]
    seconds = [after - before for before, after in pairwise(ends)]
    fetches = len(answers.read_bytes()) if with_page else 0
    return {"iteration_seconds": statistics.median(seconds), "fetches": float(fetches)}


@contextmanager
def watched(store: Path, answers: Path) -> Iterator[None]:
    """The page of the store, and a client that follows the run and writes a byte for each answer."""
    serve = [sys.executable, "-m", "command_line.main", "ui", "--store", str(store), "--port", "0"]
    with subprocess.Popen(serve, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            found = (re.search(r"http://[\w.]+:\d+", line) for line in server.stderr)
            address = next(match[0] for match in found if match)
            with subprocess.Popen([sys.executable, __file__, "--follow", address, str(answers)]) as client:
                try:
                    while not answers.exists():  # the client is there
                        time.sleep(0.05)
                    yield
                finally:
                    client.terminate()
        finally:
            server.terminate()


def follow(address: str, answers: Path) -> None:
    """Read the events of the run, and after each fetch what the page's script fetches, until stopped."""
    with (
        httpx.Client(base_url=address, timeout=None) as page,
        answers.open("ab", buffering=0) as written,
        page.stream("GET", f"/runs/{RUN}/events") as events,
    ):
        for line in events.iter_lines():
            if line.startswith("event: "):
                for path in (f"/runs/{RUN}/live", f"/curves?run={RUN}"):
                    page.get(path).raise_for_status()
                    written.write(b".")


def main() -> None:
    if sys.argv[1:2] == ["--follow"]:
        follow(sys.argv[2], Path(sys.argv[3]))
        return
    parser = measurements.argument_parser(__doc__)
    parser.add_argument("--iterations", type=int, default=20, help="that each contender adds")
    parser.add_argument("--base", type=Path, help="a store with the run; it is trained there if it lacks it")
    arguments = measurements.parse_arguments(parser)
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        base = arguments.base or Path(folder) / "base"
        if arguments.contender:
            store = shutil.copytree(base, Path(folder) / "store")
            figures = continue_training(
                store, arguments.iterations, arguments.threads, with_page=arguments.contender == BESIDE
            )
            arguments.figures.write_text(json.dumps(figures))
            return
        config = configuration(STORED, arguments.threads)
        with open_run(config, str(base), Listener(), threading.Event()) as opened:
            train(opened)
        measurements.compare_contenders(
            "live_page",
            (BESIDE, ALONE),
            COLUMNS,
            arguments,
            ["--base", str(base), "--iterations", str(arguments.iterations)],
            ["torch", "fastapi"],
            f"{arguments.iterations} iterations of the default configuration after {STORED} stored ones. ",
        )


if __name__ == "__main__":
    main()
