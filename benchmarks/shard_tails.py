"""Four shards of rollouts from one vLLM server: the next one's episodes begin on free places, or each begins
when the one before has ended.

    make vllm-cpu
    python benchmarks/shard_tails.py --runs 3 --write

Both play the same tasks with the same seeds, in turn, in stores of their own, on a server whose prefix cache
is empty; the first round is not counted. A shard has as many episodes as the engine has places.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import measurements
from contenders.bare_client import cpu_seconds, server_cpu_seconds
from contenders.requests_to_server import reset_prefix_cache
from measurements import Column, Figures
from rollout_speed import KEY_VARIABLE, WARM_UP, server_pid, start

AHEAD, BEFORE = "next shard on free places", "one after the other"
PLACES = 64
CONFIG = "configs/frozen_lake_vllm.yaml"
SETTINGS = [
    "engine.dtype=float32",
    f"engine.max_in_flight={PLACES}",
    "policy.cold_start.steps=20",
    "policy.cold_start.gate=0",
    "method.memory=off",
    "rollouts={tasks_per_iteration: 32, group_size: 8, tasks_per_shard: 8}",
]
COLUMNS = (
    Column("tokens_per_second", "tokens/s"),
    Column("seconds", "seconds", 2),
    Column("client_cpu_seconds", "client CPU s", 2),
    Column("server_cpu_seconds", "server CPU s", 2),
)


def main() -> None:
    arguments = measurements.parse_arguments(measurements.argument_parser(__doc__ or ""))
    machine = measurements.describe_machine(arguments.threads, ["torch", "transformers", "vllm-cpu"])
    runs: dict[str, list[Figures]] = {AHEAD: [], BEFORE: []}
    with ExitStack() as open_:
        folder = Path(open_.enter_context(tempfile.TemporaryDirectory()))
        overrides = [*SETTINGS, f"resources.threads={arguments.threads}"]
        server, config = start(CONFIG, overrides, folder, open_)
        task = {"url": server.url, "key": os.environ[KEY_VARIABLE], "pid": server_pid()}
        for number in range(len(runs)):
            shutil.copytree(folder / "store", folder / f"store-{number}")
        for round_ in range(arguments.runs + 1):
            for number, contender in enumerate(runs):
                one = play(
                    config.model_dump(mode="json"), folder / f"store-{number}", contender, round_, task
                )
                print(f"run {round_}/{arguments.runs}  {contender}: {json.dumps(one)}", flush=True)
                if round_:
                    runs[contender].append(one)
    table = measurements.print_table(runs, COLUMNS, AHEAD)
    if arguments.write:
        note = f"Tiny policy, 4 shards of 64 episodes, {PLACES} places; {arguments.runs} runs, medians "
        note += "(least to most)."
        measurements.publish("shard_tails", machine, runs, note, table)


def play(
    config: dict[str, object], store: Path, contender: str, round_: int, task: dict[str, object]
) -> Figures:
    """The four shards of one iteration, in this process."""
    from workloads.planned import planned_run

    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.stages.names import TRAJECTORIES
    from storage.tables.trajectories import read_trajectories

    validated = RunConfig.model_validate(config)
    with planned_run(validated, str(store)) as run:
        run.begin()
        # First one episode of another iteration, so that the server has proven its weights.
        one = validated.rollouts.model_copy(update={"tasks_per_iteration": 1, "group_size": 1})
        run.execute_run(run.first_shards(WARM_UP + round_, one))
        shards = run.first_shards(round_ + 1)
        if contender == BEFORE:
            shards = [replace(each, stage=replace(each.stage, begins_next=False)) for each in shards]
        reset_prefix_cache(str(task["url"]), str(task["key"]))
        server, client = server_cpu_seconds(int(str(task["pid"]))), cpu_seconds()
        started = time.perf_counter()
        outcomes = run.execute_run(shards)
        seconds = time.perf_counter() - started
        server, client = server_cpu_seconds(int(str(task["pid"]))) - server, cpu_seconds() - client
        rows = [row for file in run.files(outcomes, TRAJECTORIES) for row in read_trajectories([file])]
        tokens = sum(sum(row.response_mask) for row in rows)
    return {
        "tokens_per_second": tokens / seconds,
        "seconds": seconds,
        "tokens": tokens,
        "client_cpu_seconds": client,
        "server_cpu_seconds": server,
    }


if __name__ == "__main__":
    main()
