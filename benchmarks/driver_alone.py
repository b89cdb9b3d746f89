"""The driver's own time and memory, on a long plan whose stages are not really computed.

    python benchmarks/driver_alone.py --iterations 1000 --shards 256 --write

The plan is that of a real ERL run with this many shards per iteration. It is executed as in a run: every
artifact is looked for in the store, and is entered in the run's ledger. The runner is a fake: it immediately
reports each stage as committed, and commits nothing. So only the driver is measured: the cost of handing out
stages and recording their outcomes, however fast the workers are.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from concurrent.futures import Future
from datetime import UTC, datetime

import measurements
from measurements import Column, Figures

from erl_pipeline.config.loading import load_config
from erl_pipeline.config.pipeline import ResourcesConfig
from erl_pipeline.plan.execution import Execution, execute
from erl_pipeline.plan.runner import Made, StageJob
from erl_pipeline.plan.sources import read_sources
from erl_pipeline.plan.stage import Listener, StageOutcome, WorkerSettings
from erl_pipeline.runs.driver import open_run
from erl_pipeline.runs.run_plans import plan_run
from storage.artifacts.manifest import Manifest

CONFIG = "configs/cluster_ray.yaml"
COLUMNS = (
    Column("cpu_seconds", "CPU s in all"),
    Column("walk_milliseconds", "ms a stage, walk and ledger", 3),
    Column("walk_seconds", "s to walk"),
    Column("plan_seconds", "s to plan"),
    Column("stages", "stages", 0),
    Column("plan_bytes", "MB of the plan", 0, 1e-6),
    Column("peak_bytes", "peak MB", 0, 1e-6),
)


class PretendedRunner:
    """Immediately reports each stage as committed.

    Args:
        workers: how many stages are handed out before a result is collected.
    """

    retries = False
    shares_files = False

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def prepare(self) -> None:
        """Nothing has to start."""

    def submit(self, job: StageJob) -> Future[Made]:
        """The manifest of an artifact without files."""
        node, recipe = job.planned, job.planned.recipe
        now = datetime.now(UTC)
        future: Future[Made] = Future()
        future.set_result(
            Manifest(
                artifact_id=node.artifact_id,
                stage=node.stage.name,
                stage_version=node.stage.version,
                kind=node.stage.output,
                run=job.worker.run,
                iteration=node.iteration,
                inputs=dict(recipe.inputs),
                settings={},
                index=dict(recipe.index),
                code={},
                seed=recipe.seed,
                code_version="",
                packages={},
                environment={},
                started_at=now,
                finished_at=now,
                policy_version=None,
                memory_version=None,
                determinism="bytes",
                counters={},
                metrics={},
                files=[],
            )
        )
        return future

    def finished(self, outcome: StageOutcome) -> None:
        """Do nothing."""


def measure(iterations: int, shards: int, workers: int) -> Figures:
    """Plan a run and execute the plan, in this process."""
    config = load_config(
        CONFIG,
        [
            f"iterations={iterations}",
            f"rollouts.tasks_per_iteration={shards}",
            "rollouts.tasks_per_shard=1",
            "runner=in_process",
            "metrics=[]",
        ],
    )
    before = measurements.process_memory_and_cpu()["peak_bytes"]
    started = time.perf_counter()
    plan = plan_run(config, read_sources(config))
    planned = time.perf_counter()
    after_plan = measurements.process_memory_and_cpu()["peak_bytes"]
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as store, open_run(config, store, Listener(), stop) as opened:
        worker = WorkerSettings(opened.store.uri, opened.run.name, config.resources.threads)
        begun = time.perf_counter()
        execute(
            plan,
            Execution(
                store=opened.store,
                runner=PretendedRunner(workers),
                worker=worker,
                resources=ResourcesConfig(devices=workers),
                listener=opened.listener,
                record=opened.record,
                stopped=stop.is_set,
            ),
        )
        walk = time.perf_counter() - begun
        if len(opened.stages()) != len(plan.nodes):
            raise RuntimeError(f"{len(opened.stages())} of {len(plan.nodes)} stages are in the ledger")
    return {
        "stages": float(len(plan.nodes)),
        "plan_seconds": planned - started,
        "plan_bytes": after_plan - before,
        "walk_seconds": walk,
        "walk_milliseconds": walk * 1000 / len(plan.nodes),
        **measurements.process_memory_and_cpu(),
    }


def main() -> None:
    parser = measurements.argument_parser(__doc__)
    parser.set_defaults(runs=1, threads=1)
    parser.add_argument("--iterations", type=int, default=1000, help="of the plan")
    parser.add_argument("--shards", type=int, default=256, help="of each iteration")
    parser.add_argument("--workers", type=int, nargs="+", default=[64, 8], help="stages handed out at a time")
    arguments = measurements.parse_arguments(parser)
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    if arguments.contender:
        workers = int(arguments.contender.split()[0])
        figures = measure(arguments.iterations, arguments.shards, workers)
        arguments.figures.write_text(json.dumps(figures))
        return
    measurements.compare_contenders(
        "driver_alone",
        [f"{workers} workers" for workers in arguments.workers],
        COLUMNS,
        arguments,
        ["--iterations", str(arguments.iterations), "--shards", str(arguments.shards)],
        ["pydantic"],
        f"{arguments.iterations:,} iterations of {arguments.shards} shards, ",
    )


if __name__ == "__main__":
    main()
