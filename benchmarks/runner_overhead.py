"""What a runner costs: the time of an iteration, and of a stage that computes nothing, for each runner.

    pip install 'erl-pipeline[ray]'
    python benchmarks/runner_overhead.py --runs 3 --write

Every contender trains the same small run, with four shards per iteration, and then executes a chain of stages
that each write one small file. The first iteration, in which workers load their models, is reported
separately. The start is the time from opening the runner to its first stage; for Ray it includes joining the
cluster and checking its nodes. The Ray cluster has two nodes on this machine. The ids and files of all
contenders are compared, and the script fails if they differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import measurements
from measurements import Column, Figures
from workloads.idle_stages import idle_plan

from erl_pipeline.config.loading import load_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.stage import Listener, StageOutcome
from erl_pipeline.runs.driver import execute_run, open_run
from erl_pipeline.runs.train import train
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore

CONFIG = "configs/cluster_ray.yaml"
RUNNERS = {
    "in_process": "{type: in_process}",
    "prefect, threads": "{type: prefect}",
    "prefect, 1 process": "{type: prefect, task_runner: processes, workers: 1}",
    "prefect, 2 processes": "{type: prefect, task_runner: processes, workers: 2}",
    "ray, 1 worker": "{type: ray, address: '%s', workers: 1, device_stage: {gpus: 0}}",
    "ray, 2 workers": "{type: ray, address: '%s', workers: 2, device_stage: {gpus: 0}}",
    "ray, 4 workers": "{type: ray, address: '%s', workers: 4, device_stage: {gpus: 0}}",
}
COLUMNS = (
    Column("idle_milliseconds", "ms a stage that does nothing"),
    Column("iteration_seconds", "s an iteration", 2),
    Column("first_iteration_seconds", "s of the first", 1),
    Column("start_seconds", "s to start", 1),
)


class Times(Listener):
    """Records when the first stage began, and when the last stage of each iteration ended."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.ends: dict[int, float] = {}

    def stage_started(self, title: str) -> None:
        self.first = self.first or time.perf_counter()

    def stage_finished(self, title: str, outcome: StageOutcome) -> None:
        self.ends[outcome.iteration or 0] = time.perf_counter()


def measure(runner: str, iterations: int, stages: int) -> Figures:
    """Train the run and execute the idle stages, in a new store."""
    settings = [f"runner={runner}", f"iterations={iterations}", "metrics=[]"]
    if "workers: 4" in runner:
        settings.append("resources.devices=4")
    config = load_config(CONFIG, settings)
    with tempfile.TemporaryDirectory() as store:
        times, started = Times(), time.perf_counter()
        with open_run(config, store, times, threading.Event()) as opened:
            train(opened)
        assert times.first is not None
        ends = times.ends
        figures = {
            "start_seconds": times.first - started,
            "first_iteration_seconds": ends[1] - times.first,
            "iteration_seconds": (ends[iterations] - ends[1]) / (iterations - 1),
            "digest": float(int(_digest(store, config.name)[:12], 16)),
        }
        figures["idle_milliseconds"] = _idle_milliseconds(config, store, stages)
    return figures


def _idle_milliseconds(config: RunConfig, store: str, stages: int) -> float:
    """Mean milliseconds of an idle stage, without the first one, which starts a worker."""
    times = Times()
    begun: list[float] = []

    def on_outcome(_outcome: StageOutcome) -> None:
        begun.append(time.perf_counter())

    idle = config.model_copy(update={"name": "idle"})
    with open_run(idle, store, times, threading.Event()) as opened:
        execute_run(opened, idle_plan(stages), frozenset(), on_outcome)
    return (begun[-1] - begun[0]) * 1000 / (stages - 1)


def _digest(store: str, run: str) -> str:
    """A digest over the ids of all artifacts of a run, and over the digests of their files."""
    artifacts, digest = ArtifactStore(store), hashlib.sha256()
    for artifact_id in sorted(entry.artifact_id for entry in RunStore(store).open(run).recorded()):
        files = artifacts.open(artifact_id).manifest.files
        digest.update(f"{artifact_id} {sorted((each.path, each.sha256) for each in files)}\n".encode())
    return digest.hexdigest()


@contextmanager
def local_cluster() -> Iterator[str]:
    """The address of a cluster of two nodes on this machine."""
    os.environ["RAY_AUTH_MODE"] = "disabled"  # a token would be written into the home folder
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": 100_000_000}
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # a socket's path has room for a hundred characters
    head = {**node, "include_dashboard": False, "temp_dir": folder}
    # Ray writes the address of a new cluster into this folder, but does not create it.
    os.makedirs("/tmp/ray", exist_ok=True)
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(**node)
        yield str(cluster.address)
    finally:
        cluster.shutdown()
        shutil.rmtree(folder)


def main() -> None:
    parser = measurements.argument_parser(__doc__)
    parser.set_defaults(runs=3, threads=1)
    parser.add_argument("--iterations", type=int, default=5, help="of the run")
    parser.add_argument("--stages", type=int, default=100, help="in a row, that compute nothing")
    parser.add_argument("--contenders", nargs="+", default=list(RUNNERS), choices=RUNNERS)
    parser.add_argument("--address", default="", help=argparse.SUPPRESS)
    arguments = measurements.parse_arguments(parser)
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    if arguments.contender:
        runner = RUNNERS[arguments.contender]
        filled = runner % arguments.address if "%s" in runner else runner
        arguments.figures.write_text(json.dumps(measure(filled, arguments.iterations, arguments.stages)))
        return
    machine = measurements.describe_machine(arguments.threads, ["torch", "prefect", "ray"])
    with local_cluster() as address:
        options = ["--address", address, "--iterations", str(arguments.iterations)]
        options += ["--stages", str(arguments.stages), "--threads", str(arguments.threads)]
        runs = measurements.alternate(arguments.contenders, arguments.runs, options)
    digests = {figures["digest"] for contender in runs.values() for figures in contender}
    if len(digests) != 1:
        raise RuntimeError("runners gave different ids or files")
    tables = measurements.print_table(runs, COLUMNS, arguments.contenders[0])
    print("Ids and files of all runs are equal.")
    if arguments.write:
        note = (
            f"{arguments.runs} runs of {arguments.iterations} iterations, medians (least to most). Ids and "
            "files of all artifacts are equal."
        )
        measurements.publish("runner_overhead", machine, runs, note, tables)


if __name__ == "__main__":
    main()
