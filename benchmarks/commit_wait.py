"""How long committing a checkpoint keeps the next stage waiting.

    make smollm2
    python benchmarks/commit_wait.py --runs 5 --write

Iterations of RLVR with SmolLM2-135M-Instruct in bf16: 8 completions of at most 32 tokens for each of 8
FrozenLake prompts, one optimizer step, a checkpoint with the optimizer's state. `beside` is what `train` does
in a store that is a folder: a stage ends when its files are written, and the driver hashes and commits them
beside the next stages. `before` commits each artifact before the next stage begins, as for a bucket. The
manifests say when the files of a checkpoint were written and when the next stage began. An iteration is from
the beginning of its rollouts to those of the next one; the first is not counted.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile

import measurements
from iteration_speed import CONFIG, SETTINGS
from measurements import SMOLLM2, Column, Figures

from erl_pipeline.plan.runner import InProcessRunner

BESIDE, BEFORE = "beside", "before"
ITERATIONS = 4
COLUMNS = (
    Column("iteration_seconds", "seconds of an iteration", 2),
    Column("waiting_seconds", "of it waiting for the commit", 2),
    Column("share", "waiting, % of the iteration", 1, 100.0),
    Column("checkpoint_bytes", "GB of the checkpoint", 2, 1e-9),
)


class CommitsFirst(InProcessRunner):
    """Commits each artifact where it is computed."""

    shares_files = False


def main() -> None:
    parser = measurements.argument_parser(__doc__ or "")
    parser.add_argument("--model", default=str(SMOLLM2))
    arguments = measurements.parse_arguments(parser)
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    if arguments.contender:
        figures = measure(arguments.model, arguments.threads, arguments.contender == BESIDE)
        arguments.figures.write_text(json.dumps(figures))
        return
    measurements.require_checkpoint(SMOLLM2)
    measurements.compare_contenders(
        "commit_wait",
        [BESIDE, BEFORE],
        COLUMNS,
        arguments,
        ["--model", arguments.model],
        ["torch", "transformers"],
        f"{ITERATIONS - 2} iterations in each of ",
    )


def measure(model: str, threads: int, beside: bool) -> Figures:
    """Train in this process, and read from the manifests when stages began and ended."""
    from workloads.planned import planned_run

    from erl_pipeline.config.loading import load_config

    overrides = [
        *SETTINGS,
        f"policy.model={model}",
        f"resources.threads={threads}",
        f"iterations={ITERATIONS}",
    ]
    overrides += ["rollouts.tasks_per_iteration=8", "rollouts.tasks_per_shard=8"]
    kind = InProcessRunner if beside else CommitsFirst
    with tempfile.TemporaryDirectory() as store, planned_run(load_config(CONFIG, overrides), store) as run:
        run.begin()
        learning = [node for node in run.plan.nodes if node.iteration and node.stage.output != "evaluation"]
        run.execute_run(learning, kind)
        made = {}
        for node in learning:
            found = run.opened.store.find(node.artifact_id, node.stage.name)
            assert found is not None
            made[node.stage.name, node.iteration] = found
    counted = range(2, ITERATIONS)
    begins = [made["rollout_shard", number].started_at for number in range(1, ITERATIONS + 1)]
    iterations = [(begins[number] - begins[number - 1]).total_seconds() for number in counted]
    waiting = [
        (begins[number] - made["update_policy", number].finished_at).total_seconds() for number in counted
    ]
    return {
        "iteration_seconds": statistics.mean(iterations),
        "waiting_seconds": statistics.mean(waiting),
        "share": sum(waiting) / sum(iterations),
        "checkpoint_bytes": float(sum(entry.bytes for entry in made["update_policy", 2].files)),
    }


if __name__ == "__main__":
    main()
