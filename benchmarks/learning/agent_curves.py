"""Learning curves of the agents among the examples: ERL and RLVR over seeds, success on their held-out tasks
by generated tokens.

    PYTHONPATH=benchmarks python benchmarks/learning/agent_curves.py --seeds 3 --store curves/store --write

The agents are those with a tool (OpenAI's package), with a framework (pydantic-ai) and in another language
(Perl). Both methods begin with the same policy, use the same settings but for the size of their groups, with
which RLVR spends about the tokens that ERL spends on reflections and second attempts, and are compared at the
most tokens that all runs of an agent reached. No setting was searched, and the tasks are the held-out ones:
`erl-pipeline compare` is the tool for a claim about methods; this shows that agents learn. What a run has
committed is reused by the next call.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import product
from pathlib import Path

import measurements

from erl_pipeline.comparison.measures import SeedSummary, across_seeds, value_at
from erl_pipeline.evaluation.history import CurvePoint, learning_curve, read_history
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore

AGENTS = ("shop", "capitals", "opposites")
METHODS = {"erl": 4, "rlvr": 10}
"""The attempts of each method at a task in an iteration."""
COMMON = ("rollouts.tasks_per_iteration=4", "rollouts.tasks_per_shard=4", "evaluation.every=2")
"""Settings that differ from the examples' own, so that a run takes minutes on two cores."""
Curve = list[CurvePoint]
Stored = Sequence[Mapping[str, float]]
"""A curve as it is stored."""


def trained(agent: str, method: str, seed: int, arguments: argparse.Namespace) -> Curve:
    """The learning curve of one run, which is trained as far as it is not yet."""
    name = f"{agent}-{method}-{seed}"
    settings = [*COMMON, f"seed={seed}", f"rollouts.group_size={METHODS[method]}"]
    if method != "erl":
        settings.append(f"method={{type: {method}}}")
    words = ["train", f"examples/agents/{agent}.yaml", "--name", name, "--store", arguments.store]
    words += ["--no-prefect", "--iterations", str(arguments.iterations)]
    words += [word for setting in settings for word in ("--set", setting)]
    threads = {"OMP_NUM_THREADS": str(arguments.threads)}
    done = subprocess.run(
        [sys.executable, "-m", "command_line.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **threads},
        cwd=measurements.ROOT,
    )
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stdout[-4000:]}")
    curve = learning_curve(read_history(ArtifactStore(arguments.store), RunStore(arguments.store).open(name)))
    print(name, " ".join(f"{point.generated_tokens}:{point.success:.3f}" for point in curve), flush=True)
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--agents", nargs="+", default=list(AGENTS), choices=AGENTS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each run")
    parser.add_argument("--store", required=True)
    measurements.add_write_arguments(parser)
    arguments = measurements.parse_arguments(parser)
    measurements.require_checkpoint(measurements.SMOLLM2)
    measurements.require_checkpoint(Path("models/SmolLM2-135M-tools"))
    machine = measurements.describe_machine(arguments.threads, ["torch", "transformers", "pydantic-ai-slim"])
    places = list(product(range(arguments.seeds), arguments.agents, METHODS))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        running = {
            (agent, method, seed): pool.submit(trained, agent, method, seed, arguments)
            for seed, agent, method in places
        }
        curves = {place: future.result() for place, future in running.items()}
    results = {
        agent: {
            method: [
                [asdict(point) for point in curves[agent, method, seed]] for seed in range(arguments.seeds)
            ]
            for method in METHODS
        }
        for agent in arguments.agents
    }
    rows = result_table(results)
    print(measurements.as_text(rows), flush=True)
    if arguments.write:
        note = f"{arguments.seeds} seeds, means with their intervals over seeds (Student's t)."
        measurements.publish("agent_curves", machine, results, note, measurements.as_markdown(rows))


def result_table(results: Mapping[str, Mapping[str, Sequence[Stored]]]) -> list[list[str]]:
    """Rows of cells, the heading first: success before training and at equal tokens. `results`: the curves by
    agent and method, one of each seed."""
    rows = [["agent", "method", "tokens", "before", "after", "after, each seed"]]
    for agent, by_method in results.items():
        tokens = min(curve[-1]["generated_tokens"] for curves in by_method.values() for curve in curves)
        for method, curves in by_method.items():
            after = [success_at(curve, tokens) for curve in curves]
            rows.append(
                [
                    agent,
                    method,
                    f"{tokens:,}",
                    shown(across_seeds([success_at(curve, 0) for curve in curves])),
                    shown(across_seeds(after)),
                    " ".join(f"{one:.3f}".removeprefix("0") for one in after),
                ]
            )
    return rows


def success_at(curve: Stored, tokens: float) -> float:
    """Success at so many generated tokens, linear between evaluations."""
    return value_at(
        [point["generated_tokens"] for point in curve], [point["success"] for point in curve], tokens
    )


def shown(summary: SeedSummary) -> str:
    """A mean with its interval, if there is one."""
    numbers = [summary.mean, *(each for each in (summary.low, summary.high) if each is not None)]
    mean, *ends = [
        f"{each:.3f}".replace("0.", ".", 1) if abs(each) < 1 else f"{each:.3f}" for each in numbers
    ]
    return f"{mean} ({ends[0]} to {ends[1]})" if ends else mean


if __name__ == "__main__":
    main()
