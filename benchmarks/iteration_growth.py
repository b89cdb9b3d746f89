"""What one more iteration costs when 10 are stored, and when 1,000 are.

A run of the smallest possible size is really trained, to 10 iterations in one store and to 1,000 in another.
Then one more iteration is trained in each, alternating, in a new process each time. Measured are:

- the stages' own seconds, and what the process does before and around them: reading the run, finding where to
  continue, verifying the newest iteration, recording metrics, committing;
- peak memory and CPU seconds;
- the whole command `erl-pipeline train` without Prefect, from start to end, table and report included;
  with `--prefect` the same with Prefect's server, flows and page.

    python benchmarks/iteration_growth.py --runs 7 --write

Training the long run takes about six minutes. With `--store` both runs are kept and used again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from measurements import (
    Figures,
    add_run_alone_arguments,
    add_write_arguments,
    as_markdown,
    as_text,
    describe_machine,
    median_and_range,
    parse_arguments,
    process_memory_and_cpu,
    publish,
    run_alone,
)

from erl_pipeline.config.loading import load_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.stage import Listener, StageOutcome
from erl_pipeline.runs.driver import open_run
from erl_pipeline.runs.state import completed_iterations
from erl_pipeline.runs.train import train
from storage.runs.run import RunStore

NAME = "iteration_growth"
RUN = "growth"
SHORT, LONG = 10, 1000
PORTION = 100
CONFIG = f"""\
name: {RUN}
iterations: {LONG}
runner: in_process
resources: {{threads: 1}}
environment: {{type: frozen_lake, training_boards: 16, rows: [3, 3], path_length: [1, 2], max_steps: 2}}
policy:
  type: tiny
  layers: 1
  hidden_size: 32
  heads: 1
  cold_start: {{steps: 60, demonstrations_per_step: 16, gate: 0}}
rollouts: {{tasks_per_iteration: 1, group_size: 2, tasks_per_shard: 1}}
objective: {{advantages_per: group}}  # groups of two are not split
evaluation: {{tasks: 2, every: 100}}
"""
FIGURES = {
    "train": "one more iteration, from opening the run",
    "before": "of it, before the iteration's first stage",
    "stages": "of it, the stages",
    "around": "of it, between and after the stages",
    "command": "the whole command",
}


class StageSeconds(Listener):
    """Adds up the seconds of the stages of one iteration."""

    def __init__(self, iteration: int) -> None:
        self._ending = f" of iteration {iteration}"
        self._iteration = iteration
        self.began: float | None = None
        self.seconds = 0.0

    def stage_started(self, title: str) -> None:
        if self.began is None and self._ending in title:
            self.began = time.perf_counter()

    def stage_finished(self, title: str, outcome: StageOutcome) -> None:
        if outcome.iteration == self._iteration:
            self.seconds += outcome.seconds


def configuration(folder: Path) -> Path:
    """Write the run's configuration into a file; return its path."""
    path = folder / "growth.yaml"
    path.write_text(CONFIG)
    return path


def stored_iterations(store: Path, config: RunConfig) -> int:
    """How many iterations the run in a store has."""
    runs = RunStore(str(store))
    if RUN not in runs.list():
        return 0
    return completed_iterations(config, runs.open(RUN).stages())


def build(store: Path, config: RunConfig, iterations: int) -> None:
    """Train the run in a store to this many iterations, unless it has them already."""
    stored = stored_iterations(store, config)
    with open_run(config, str(store), Listener(), threading.Event()) as opened:
        while stored < iterations:
            target = min(iterations, stored + PORTION)
            started = time.perf_counter()
            train(opened, target)
            print(f"trained to {target}, {time.perf_counter() - started:.0f} s", flush=True)
            stored = target


def one_more(store: Path) -> Figures:
    """Train one more iteration in this process."""
    config = load_config(store / "growth.yaml", [])
    started = time.perf_counter()
    # The count is read from the ledger, as a scheduled flow reads it.
    target = stored_iterations(store, config) + 1
    listener = StageSeconds(target)
    with open_run(config, str(store), listener, threading.Event()) as opened:
        train(opened, target)
    ended = time.perf_counter()
    if listener.began is None:
        raise RuntimeError(f"iteration {target} was not run")
    figures = {
        "stored": float(target - 1),
        "train": ended - started,
        "before": listener.began - started,
        "stages": listener.seconds,
        "around": ended - listener.began - listener.seconds,
    }
    return figures | process_memory_and_cpu()


def command_seconds(store: Path, prefect: bool) -> float:
    """Seconds of `erl-pipeline train` for one more iteration, from its start to its end."""
    config = store / "growth.yaml"
    target = stored_iterations(store, load_config(config, [])) + 1
    words = [str(Path(sys.executable).with_name("erl-pipeline")), "train", str(config)]
    words += ["--store", str(store), "--iterations", str(target)]
    words += ["--set", "runner=prefect"] if prefect else []
    started = time.perf_counter()
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed with status {done.returncode}:\n{done.stdout[-4000:]}")
    return seconds


def measure(stores: dict[int, Path], runs: int, prefect: bool) -> dict[int, list[Figures]]:
    """Train one more iteration in each store, `runs` times; the order is reversed in every other round."""
    figures: dict[int, list[Figures]] = {stored: [] for stored in stores}
    for round_ in range(runs):
        for stored in stores if round_ % 2 == 0 else reversed(stores):
            store = stores[stored]
            one = run_alone("one_more", ["--store", str(store)], __file__)
            one["command"] = command_seconds(store, prefect)
            figures[stored].append(one)
            shown = "  ".join(f"{name} {value:.5g}" for name, value in one.items())
            print(f"run {round_ + 1}/{runs}  {stored}: {shown}", flush=True)
    return figures


def result_table(figures: dict[int, list[Figures]]) -> list[list[str]]:
    """Rows of cells: median and range of each figure, after few and after many iterations."""
    short, long = (figures[stored] for stored in sorted(figures))
    spans = [
        f"{int(found[0]['stored']):,} to {int(found[-1]['stored']) + 1:,} stored" for found in (short, long)
    ]
    rows = [["seconds", *spans, "ratio of medians"]]
    for figure, title in FIGURES.items():
        rows.append([title, *_cells(short, long, figure, 1.0, 3)])
    rows.append(["CPU seconds of the process", *_cells(short, long, "cpu_seconds", 1.0, 2)])
    rows.append(["peak memory, MB", *_cells(short, long, "peak_bytes", 1e-6, 0)])
    return rows


def _cells(short: list[Figures], long: list[Figures], figure: str, factor: float, digits: int) -> list[str]:
    told = [median_and_range([run[figure] * factor for run in found], digits) for found in (short, long)]
    ratio = statistics.median(run[figure] for run in long) / statistics.median(run[figure] for run in short)
    return [*told, f"{ratio:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=LONG, help="of the long run")
    parser.add_argument("--runs", type=int, default=7, help="of each, alternating")
    parser.add_argument("--prefect", action="store_true", help="measure the command with Prefect")
    parser.add_argument("--store", type=Path, help="folder of the runs, which are trained if missing")
    add_write_arguments(parser)
    add_run_alone_arguments(parser)
    given = parse_arguments(parser)
    os.environ["OMP_NUM_THREADS"] = "1"
    if given.contender:
        given.figures.write_text(json.dumps(one_more(given.store)))
        return
    machine = describe_machine(1, ["torch", "transformers", "lancedb", "polars"])
    folder = given.store or Path(tempfile.mkdtemp(prefix="iteration-growth-"))
    stores = {SHORT: folder / "short", given.iterations: folder / "long"}
    try:
        for stored, store in stores.items():
            store.mkdir(parents=True, exist_ok=True)
            build(store, load_config(configuration(store), []), stored)
        figures = measure(stores, given.runs, given.prefect)
    finally:
        if not given.store:
            shutil.rmtree(folder)
    rows = result_table(figures)
    print(as_text(rows))
    if given.write:
        runs = {f"after {stored}": found for stored, found in figures.items()}
        note = (
            f"Median and range of {given.runs} runs each, alternating, every run a process of its own; the "
            f"command {'with' if given.prefect else 'without'} Prefect."
        )
        publish(NAME, machine, runs, note, as_markdown(rows))


if __name__ == "__main__":
    main()
