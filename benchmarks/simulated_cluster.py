"""How far a simulated makespan is from a measured one, and what the simulation says about larger clusters.

First part, `--only here`: for each way of running (stages in one process; two worker processes; two with
`pipeline.lag: 1`), a run of seed 0 is trained, and then the same with other seeds. The makespans of the other
seeds are predicted from the records of a run of seed 0: once from the one run in the same way, and once from
the one run in one process. A makespan is measured from the beginning of the first stage to the last line of
the ledger. The run of seed 0 is also simulated from itself, which separates the simulation's own error from
differences between runs.

    python benchmarks/simulated_cluster.py --seeds 2 --write

Second part, `--only clusters`: simulations of configs/clusters/gpus_*.yaml, whose numbers are assumptions,
which are named there. Third part, `--only iteration`: what an iteration of Qwen3-8B on eight GPUs is spent
on, with and without processes of the trainer that stay, and with hand-overs without files.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from measurements import (
    add_write_arguments,
    as_markdown,
    as_text,
    describe_machine,
    parse_arguments,
    publish,
)

from erl_pipeline.config.loading import load_config
from erl_pipeline.plan.cluster import ClusterConfig, read_cluster
from erl_pipeline.runs.cluster_forecast import ClusterForecast, forecast_on_cluster
from storage.runs.run import RunStore

NAME = "simulated_cluster"
ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "frozen_lake.yaml"
PAPER = ROOT / "configs" / "gpu_eight_qwen3_4b.yaml"
SETTINGS = (
    "resources.threads=1",
    "metrics=[]",
    "policy.cold_start.steps=100",
    "policy.cold_start.gate=0",
    "rollouts.tasks_per_iteration=32",
    "rollouts.tasks_per_shard=8",
    "evaluation.every=2",
    "objective.correction={type: decoupled}",
)
PROCESSES = ("runner={type: prefect, task_runner: processes, workers: 2}", "resources.devices=2")
WAYS: Mapping[str, tuple[str, ...]] = {
    "in one process": ("runner=in_process",),
    "two processes": PROCESSES,
    "two processes, lag 1": (*PROCESSES, "pipeline.lag=1"),
}
SIZES = {8: 64, 64: 512, 512: 4096}
"""Number of GPUs -> tasks per iteration, with eight tasks per shard."""
SIMULATED_ITERATIONS = 20
PRICED_ITERATIONS = 24

Figures = list[dict[str, Any]]
"""What is written: one item for each row of a table."""


def settings_of(way: str, seed: int, iterations: int) -> list[str]:
    return [*SETTINGS, *WAYS[way], f"seed={seed}", f"iterations={iterations}", "name=simulated"]


def train(way: str, seed: int, iterations: int, store: Path) -> float:
    """Train a run in a new store with the command line; return its makespan in seconds."""
    words = [word for setting in settings_of(way, seed, iterations) for word in ("--set", setting)]
    command = [sys.executable, "-m", "command_line.main", "train", str(CONFIG), "--store", str(store), *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    if done.returncode != 0:
        raise RuntimeError(
            f"{way}, seed {seed}, failed with status {done.returncode}:\n{done.stdout[-4000:]}"
        )
    entries = RunStore(str(store)).open("simulated").recorded()
    begun = min(entry.recorded_at.timestamp() - entry.seconds for entry in entries)
    return max(entry.recorded_at.timestamp() for entry in entries) - begun


def predict(way: str, iterations: int, store: Path, start_seconds: float) -> float:
    """Predict the makespan of a way of running, in seconds, from what the run in a store took."""
    workers = 2 if "two" in way else 1
    node = {"devices": workers, "workers": workers, "start_seconds": start_seconds}
    cluster = ClusterConfig.model_validate({"nodes": {"here": node}})
    config = load_config(CONFIG, settings_of(way, 1, iterations))
    return forecast_on_cluster(config, cluster, str(store), iterations).simulation.makespan


def seconds_of_imports() -> float:
    """Seconds for the imports of a new worker process before its first stage."""
    begun = time.monotonic()
    modules = "erl_pipeline.engines.embedded.engine, erl_pipeline.trainers.local.trainer, flows.stage_worker"
    subprocess.run([sys.executable, "-c", f"import {modules}"], check=True, cwd=ROOT)
    return time.monotonic() - begun


def validate(seeds: int, iterations: int, folder: Path) -> Figures:
    """For each way and seed: the makespan as measured, as predicted from the same way, and as predicted from
    one process."""
    found: Figures = []
    imports = seconds_of_imports()
    first = folder / "in one process, seed 0"
    for way in WAYS:
        own = folder / f"{way}, seed 0"
        took = train(way, 0, iterations, own)
        again = predict(way, iterations, own, 0.0)
        found.append({"way": way, "seed": 0, "measured": took, "from_itself": again})
        print(as_text(rows_here(found)), flush=True)
        for seed in range(1, seeds + 1):
            measured = train(way, seed, iterations, folder / f"{way}, seed {seed}")
            same = predict(way, iterations, own, 0.0)
            other = predict(way, iterations, first, imports if "two" in way else 0.0)
            figures = {"measured": measured, "from_same": same, "from_one_process": other}
            found.append({"way": way, "seed": seed, "imports": imports, **figures})
            print(as_text(rows_here(found)), flush=True)
    return found


def rows_here(found: Figures) -> list[list[str]]:
    """The table of what was measured and predicted, its head first."""
    rows = [["way", "seed", "measured, s", "from the same way, s", "error", "from one process, s", "error"]]
    for each in found:
        measured = each["measured"]
        itself = each.get("from_itself")
        same = each["from_same"] if itself is None else itself
        cells = [f"{same:.1f}{'' if itself is None else ' (itself)'}", f"{same / measured - 1:+.1%}"]
        other = each.get("from_one_process")
        more = ["", ""] if other is None else [f"{other:.1f}", f"{other / measured - 1:+.1%}"]
        rows.append([each["way"], str(each["seed"]), f"{measured:.1f}", *cells, *more])
    return rows


def on_gpus(gpus: int, lag: int, iterations: int, folder: Path) -> ClusterForecast:
    """Simulate the configuration of the paper's size, with the number of tasks for this many GPUs."""
    tasks = [
        f"rollouts.tasks_per_iteration={SIZES[gpus]}",
        "rollouts.tasks_per_shard=8",
        f"pipeline.lag={lag}",
    ]
    config = load_config(PAPER, tasks)
    cluster = read_cluster(ROOT / "configs" / "clusters" / f"gpus_{gpus}.yaml")
    return forecast_on_cluster(config, cluster, str(folder), iterations)


def clusters(iterations: int, folder: Path) -> Figures:
    """For each cluster and lag, what the simulation says."""
    found: Figures = []
    for gpus in SIZES:
        for lag in (0, 1):
            begun = time.monotonic()
            forecast = on_gpus(gpus, lag, iterations, folder)
            simulation = forecast.simulation
            use = list(simulation.use.values())
            devices = sum(each.devices for each in use)
            found.append(
                {
                    "gpus": gpus,
                    "lag": lag,
                    "iterations": iterations,
                    "makespan": simulation.makespan,
                    **{
                        name: sum(each.devices * getattr(each, name) for each in use) / devices
                        for name in ("computing", "waiting", "idle")
                    },
                    "moved": simulation.traffic.total,
                    "variants": {variant.change: variant.makespan for variant in forecast.variants},
                    "simulated_in": time.monotonic() - begun,
                }
            )
            print(as_text(rows_of_clusters(found)), flush=True)
    return found


def rows_of_clusters(found: Figures) -> list[list[str]]:
    """The table of the clusters, its head first."""
    shares = ("computing", "waiting", "idle")
    rows = [["GPUs", "tasks", "lag", "an iteration, s", *shares, "moved, TB", "best change"]]
    for each in found:
        change = min(each["variants"], key=each["variants"].get)
        gain = each["variants"][change] / each["makespan"] - 1
        rows.append(
            [
                str(each["gpus"]),
                f"{SIZES[each['gpus']]:,}",
                str(each["lag"]),
                f"{each['makespan'] / each['iterations']:,.0f}",
                *(f"{each[name]:.0%}" for name in shares),
                f"{each['moved'] / 1e12:,.1f}",
                f"`{change}` ({gain:+.0%})" if gain < -0.005 else "none",
            ]
        )
    return rows


EIGHT = ROOT / "configs" / "gpu_eight_qwen3_8b.yaml"
BUILT: Mapping[str, Mapping[str, Any]] = {
    "processes end (`sleep: false`)": {"trainer_wake_seconds": None, "state_bytes_per_second": None},
    "processes sleep, state written beside": {},
    "the same, hand-over over NCCL (not built)": {"handover_bytes_per_second": 2.65e9},
}
"""What is built -> settings of the node, where they differ from the file."""
PARTS: Mapping[str, Sequence[tuple[str, str]]] = {
    "rollouts": [("rollout_shard", "computing")],
    "hand-over": [("rollout_shard", "hand_over")],
    "reference log-probabilities": [("update_policy", "scoring")],
    "update": [("update_policy", "computing")],
    "fine-tune": [("fine_tune", "computing")],
    "start": [("update_policy", "starting"), ("fine_tune", "starting")],
    "write": [("update_policy", "writing"), ("fine_tune", "writing")],
    "wait for commits": [("update_policy", "waiting_for_commits"), ("fine_tune", "waiting_for_commits")],
}


def iterations_of_eight(iterations: int, folder: Path) -> Figures:
    """For RLVR and ERL and for what is built, the seconds of an iteration after the first, by part."""
    found: Figures = []
    for method, file in {"RLVR": "gpus_8_qwen3_8b.yaml", "ERL": "gpus_8_qwen3_8b_erl.yaml"}.items():
        given = read_cluster(ROOT / "configs" / "clusters" / file)
        for built, node in BUILT.items():
            config = load_config(EIGHT, [f"method={method.lower()}", "evaluation.every=1000"])
            here = given.nodes["here"].model_copy(update=dict(node))
            cluster = given.model_copy(update={"nodes": {"here": here}})
            simulation = forecast_on_cluster(config, cluster, str(folder), iterations).simulation
            later = [each for each in simulation.ran if (each.job.planned.iteration or 0) > 1]
            later = [each for each in later if each.job.stage != "evaluate"]
            parts = {
                name: sum(
                    getattr(each.seconds, part)
                    for stage, part in of
                    for each in later
                    if each.job.stage == stage
                )
                for name, of in PARTS.items()
            }
            whole = sum(each.seconds.whole for each in later)
            parts["other"] = whole - sum(parts.values())
            written = sum(each.job.bytes + each.job.state_bytes for each in later)
            each_of = iterations - 1
            found.append(
                {
                    "method": method,
                    "built": built,
                    "seconds": whole / each_of,
                    "parts": {name: seconds / each_of for name, seconds in parts.items()},
                    "committed": written / each_of,
                }
            )
            print(as_text(rows_of_iterations(found)), flush=True)
    return found


def rows_of_iterations(found: Figures) -> list[list[str]]:
    """The table of an iteration's seconds, its head first; all stages run one after the other."""
    rows = [["method", "what is built", "iteration, s", *PARTS, "other", "committed, GB"]]
    for each in found:
        parts = [f"{each['parts'][name]:.1f}" for name in [*PARTS, "other"]]
        cells = [each["method"], each["built"], f"{each['seconds']:.0f}", *parts]
        rows.append([*cells, f"{each['committed'] / 1e9:.1f}"])
    return rows


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", choices=["here", "clusters", "iteration"], help="measure only one part")
    parser.add_argument("--seeds", type=int, default=2, help="predicted runs of each way")
    parser.add_argument("--iterations", type=int, default=8, help="of each run here")
    add_write_arguments(parser)
    arguments = parse_arguments(parser, given)
    os.environ["OMP_NUM_THREADS"] = "1"
    parts: Mapping[str, Callable[[Path], Figures]] = {
        "here": lambda folder: validate(arguments.seeds, arguments.iterations, folder),
        "clusters": lambda folder: clusters(SIMULATED_ITERATIONS, folder / "none"),
        "iteration": lambda folder: iterations_of_eight(PRICED_ITERATIONS, folder / "none"),
    }
    tables = {"here": rows_here, "clusters": rows_of_clusters, "iteration": rows_of_iterations}
    notes = {
        "here": f"{arguments.iterations} iterations.",
        "clusters": f"{SIMULATED_ITERATIONS} iterations, simulated.",
        "iteration": f"Mean of iterations 2 to {PRICED_ITERATIONS}, simulated.",
    }
    for name, measure in parts.items():
        if arguments.only not in (None, name):
            continue
        machine = describe_machine(1, ["torch", "prefect"])
        with tempfile.TemporaryDirectory() as folder:
            found = measure(Path(folder))
        if arguments.write:
            section = f"{NAME}_{name}"
            publish(section, machine, {"rows": found}, notes[name], as_markdown(tables[name](found)))


if __name__ == "__main__":
    main()
