"""Shards of rollouts on one vLLM server, measured in this process."""

from __future__ import annotations

import cProfile
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from contenders.bare_client import cpu_seconds, server_cpu_seconds
from contenders.requests_to_server import reset_prefix_cache
from measurements import Column, Figures

if TYPE_CHECKING:
    from workloads.planned import PlannedRun

    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.engines.vllm.server import ManagedServer
    from erl_pipeline.plan.plan import PlannedStage

_WARM_UP = 1000
"""Iterations from this number on are not measured."""
KEY_VARIABLE = "ROLLOUT_SPEED_API_KEY"
COLUMNS = (
    Column("tokens_per_second", "tokens/s"),
    Column("seconds", "seconds", 2),
    Column("client_cpu_seconds", "client CPU s", 2),
    Column("server_cpu_seconds", "server CPU s", 2),
)


def start(path: str, overrides: list[str], folder: Path, open_: ExitStack) -> tuple[ManagedServer, RunConfig]:
    """Commit tasks and checkpoint, and start a server with it; also return the configuration that uses it."""
    from workloads.planned import planned_run

    from erl_pipeline.config.loading import load_config
    from erl_pipeline.engines.probe_file import PROBE_FILE, read_facts
    from erl_pipeline.engines.vllm.model_servers import server_arguments
    from erl_pipeline.engines.vllm.server import ManagedServer
    from erl_pipeline.engines.vllm.serving_copy import write_serving_copy
    from erl_pipeline.engines.vllm.settings import VllmEngineConfig
    from erl_pipeline.policies.checkpoints import MODEL

    config = load_config(path, overrides)
    assert isinstance(config.engine, VllmEngineConfig)
    with planned_run(config, str(folder / "store")) as run:
        (model,) = run.files([one for one in run.begin() if one.kind == "checkpoint"], MODEL)
    server = ManagedServer(
        write_serving_copy(model, folder / "served", read_facts(model.parent / PROBE_FILE).head),
        folder / "server.log",
        arguments=server_arguments(config.engine),
        environment=config.engine.environment,
    )
    print("starting the server", flush=True)
    open_.enter_context(server)
    os.environ[KEY_VARIABLE] = server.api_key
    address = f"engine.servers=[{{url: '{server.url}', api_key_variable: {KEY_VARIABLE}}}]"
    # The run gets another name, since an existing run cannot be continued with other settings.
    return server, load_config(path, [*overrides, address, "name=measured"])


def prove_weights(run: PlannedRun, iteration: int) -> None:
    """Play one episode of an iteration that is not measured, so that the policy is loaded and served."""
    one = run.opened.config.rollouts.model_copy(update={"tasks_per_iteration": 1, "group_size": 1})
    run.execute_run(run.first_shards(_WARM_UP + iteration, one))


def measured_shards(
    run: PlannedRun, shards: Sequence[PlannedStage], url: str, pid: int, profile: Path | None = None
) -> tuple[Figures, Sequence[Path]]:
    """Compute shards, with a prefix cache that is empty at the start; the figures, and the files of the rows.
    `profile`: a file for cProfile's statistics of it."""
    from erl_pipeline.stages.names import TRAJECTORIES
    from storage.tables.trajectories import read_trajectories

    reset_prefix_cache(url, os.environ[KEY_VARIABLE])
    profiler = cProfile.Profile() if profile else None
    server_before, cpu_before = server_cpu_seconds(pid), cpu_seconds()
    started = time.perf_counter()
    outcomes = profiler.runcall(run.execute_run, shards) if profiler else run.execute_run(shards)
    seconds = time.perf_counter() - started
    cpu, server_cpu = cpu_seconds() - cpu_before, server_cpu_seconds(pid) - server_before
    if profiler and profile:
        profiler.dump_stats(profile)
    files = run.files(outcomes, TRAJECTORIES)
    tokens = sum(sum(row.response_mask) for row in read_trajectories(files))
    figures = {
        "tokens_per_second": tokens / seconds,
        "seconds": seconds,
        "tokens": tokens,
        "client_cpu_seconds": cpu,
        "server_cpu_seconds": server_cpu,
    }
    return figures, files


def server_pid() -> int:
    """The process id of the server's supervisor, the only child of this process while no contender runs."""
    import psutil

    (child,) = psutil.Process().children()
    return int(child.pid)
