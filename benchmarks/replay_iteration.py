"""An iteration of ExGRPO, compared with one of its base, which replays nothing, for equal trained tokens.

    python benchmarks/replay_iteration.py --runs 5 --write

Both train the tiny policy on `configs/exgrpo.yaml` from the same cold start, with an entropy bonus, so that
every row is trained. The last four of eight iterations are measured, in which half of the tasks are replayed:
selection with the entropies of all candidates, rollouts, storing, update, and their commits. Seconds are per
10,000 trained tokens. The speed of computing entropies is compared with that of the update in tokens per
second.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import measurements
from measurements import Column, Figures
from workloads.planned import PlannedRun, planned_run

from erl_pipeline.config.loading import load_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.plan import StageKey

CONFIG = "configs/exgrpo.yaml"
REPLAYING, BASE = "exgrpo", "base"
ITERATIONS, MEASURED = 8, 4
SETTINGS = ("iterations=8", "evaluation.every=1000", "replay.start_success=0.0")
COLUMNS = (
    Column("seconds", "s for 10,000 trained tokens", 2),
    Column("trained_tokens", "trained tokens", 0),
    Column("select_seconds", "s selection", 2),
    Column("update_tokens_per_second", "update, tokens/s", 0),
    Column("entropy_tokens_per_second", "entropies, tokens/s", 0),
)


def main() -> None:
    arguments = _arguments()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    if arguments.contender:
        arguments.figures.write_text(json.dumps(measure(arguments)))
        return
    with tempfile.TemporaryDirectory() as begun:
        with planned_run(configuration(REPLAYING, arguments), begun) as run:
            run.begin()
        measurements.compare_contenders(
            "replay_iteration",
            [REPLAYING, BASE],
            COLUMNS,
            arguments,
            ["--begun", begun],
            ["torch", "transformers"],
        )


def configuration(contender: str, arguments: argparse.Namespace) -> RunConfig:
    """The run of a contender."""
    replay = () if contender == REPLAYING else ("replay=off",)
    return load_config(CONFIG, [*SETTINGS, f"resources.threads={arguments.threads}", *replay])


def measure(arguments: argparse.Namespace) -> Figures:
    """The last iterations of a run, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        store = shutil.copytree(arguments.begun, Path(folder, "store"))
        shutil.rmtree(store / "runs")
        with planned_run(configuration(arguments.contender, arguments), str(store)) as run:
            run.begin()
            for iteration in range(1, ITERATIONS - MEASURED + 1):
                run.execute_run(run.plan.of_iteration(iteration))
            trained, selecting, updating, passed = 0.0, 0.0, 0.0, 0.0
            started = time.perf_counter()
            for iteration in range(ITERATIONS - MEASURED + 1, ITERATIONS + 1):
                nodes = run.plan.of_iteration(iteration)
                run.execute_run([node for node in nodes if node.stage.output != "evaluation"])
                update = run.outcomes["update_policy"]
                trained += update.counters["trained_tokens"]
                passed += update.counters["sequence_tokens"]
                updating += update.metrics["seconds"]
                if arguments.contender == REPLAYING:
                    selecting += run.outcomes["select_replay"].seconds
            seconds = time.perf_counter() - started
            return {
                "seconds": 10_000 * seconds / trained,
                "trained_tokens": trained,
                "select_seconds": selecting / MEASURED,
                "update_tokens_per_second": passed / updating,
                "entropy_tokens_per_second": entropy_speed(run),
            }


def entropy_speed(run: PlannedRun) -> float:
    """Prompt and response tokens per second when entropies of an iteration's trajectories are computed."""
    from erl_pipeline.config.plugins import plugins
    from erl_pipeline.policies.checkpoints import load_checkpoint, stored_parts, weights_settings
    from erl_pipeline.stages.names import trajectory_files
    from erl_pipeline.trainers.interface import TrainingStart
    from erl_pipeline.trainers.sequences import trajectory_sequence
    from storage.tables.trajectories import read_trajectories

    opened = run.opened
    recorded = opened.recorded
    rollouts = opened.store.open(recorded[StageKey(ITERATIONS, "generate_rollouts", "")])
    rows = read_trajectories(trajectory_files(rollouts, opened.store))
    checkpoint = recorded[StageKey(ITERATIONS, "update_policy", "")]
    parts = stored_parts(opened.store, checkpoint)
    weights = weights_settings(opened.config)
    start = TrainingStart(
        opened.store.open(checkpoint).folder,
        lambda: load_checkpoint(parts, weights),
        opened.config.optimizer,
    )
    trainer = plugins("trainers")["local"].value.open(opened.config.trainer, start)
    sequences = [trajectory_sequence(row) for row in rows]
    trainer.entropies(sequences[:1], 2048)
    started = time.perf_counter()
    trainer.entropies(sequences, opened.config.update.microbatch_tokens)
    tokens = sum(len(row.prompt_token_ids) + len(row.response_token_ids) for row in rows)
    return tokens / (time.perf_counter() - started)


def _arguments() -> argparse.Namespace:
    parser = measurements.argument_parser(__doc__)
    parser.add_argument("--begun", help=argparse.SUPPRESS)
    return measurements.parse_arguments(parser)


if __name__ == "__main__":
    main()
