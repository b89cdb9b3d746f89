"""The update step compared with TRL: tokens per second and peak memory, for reinforcement learning and SFT.

    pip install -r benchmarks/requirements.txt && make smollm2
    python benchmarks/update_speed.py --runs 5 --threads 2 --write

Both sides train SmolLM2-135M-Instruct on the same 64 sequences, with the lengths of FrozenLake rollouts, in
one optimizer step; each run is a separate process. The speed is the prompt and response tokens of the batch
over the seconds of the step alone: no generation, no rewards, no reference model, and for TRL no padding of
inputs either. The first step of each process is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
from functools import partial

import measurements
from measurements import SMOLLM2, Column, Figures
from workloads.batches import SEQUENCES

OURS = "erl-pipeline"
UPDATES = {
    "first attempts": (OURS, "TRL", "TRL, checkpointed", "TRL, mixed"),
    "episodes": (OURS, "TRL"),
    "SFT": (OURS, "TRL SFT", "TRL SFT, checkpointed"),
}
VARIANTS = {
    "TRL": "bf16",
    "TRL, checkpointed": "checkpointed",
    "TRL, mixed": "mixed",
    "TRL SFT": "bf16",
    "TRL SFT, checkpointed": "checkpointed",
}
COLUMNS = (
    Column("tokens_per_second", "tokens/s"),
    Column("tokens_per_cpu_second", "tokens per CPU second"),
    Column("seconds_per_step", "seconds a step", 2),
    Column("peak_bytes", "peak GB", 2, 1e-9),
)


def main() -> None:
    arguments = _arguments()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    if arguments.contender:
        figures = measure(arguments)
        arguments.figures.write_text(json.dumps(figures))
        return
    measurements.require_checkpoint(SMOLLM2)
    compare(arguments)


def compare(arguments: argparse.Namespace) -> None:
    """Run all contenders on all updates, print the tables, and with `--write` publish them."""
    machine = measurements.describe_machine(arguments.threads, ["torch", "transformers", "trl", "accelerate"])
    runs: dict[str, dict[str, list[Figures]]] = {}
    sections = []
    for update in arguments.updates:
        print(f"{update}:", flush=True)
        options = [
            *("--updates", update),
            *("--steps", str(arguments.steps)),
            *("--threads", str(arguments.threads)),
            *("--microbatch-tokens", str(arguments.microbatch_tokens)),
            *("--rows-per-pass", str(arguments.rows_per_pass)),
            *("--sequences", str(arguments.sequences)),
        ]
        taking_part = [name for name in UPDATES[update] if name in arguments.contenders]
        runs[update] = measurements.alternate(taking_part, arguments.runs, options)
        sections.append(f"**{update}**\n\n{measurements.print_table(runs[update], COLUMNS, OURS)}")
    if arguments.write:
        note = (
            f"{arguments.sequences} sequences, {arguments.runs} runs of {arguments.steps} steps each, "
            f"medians (least to most). Passes: {arguments.microbatch_tokens} tokens here, "
            f"{arguments.rows_per_pass} sequences in TRL."
        )
        measurements.publish("update_speed", machine, runs, note, "\n\n".join(sections))


def measure(arguments: argparse.Namespace) -> Figures:
    """One run of one contender, in this process."""
    import torch
    from contenders import update as contenders
    from workloads.batches import read_batch

    torch.set_num_threads(arguments.threads)
    vocabulary = json.loads((SMOLLM2 / "config.json").read_text())["vocab_size"]
    (update,) = arguments.updates
    supervised = update == "SFT"
    sequences = read_batch("first attempts" if supervised else update, vocabulary, arguments.sequences)
    if arguments.contender == OURS:
        measure_one = partial(
            contenders.measure_ours,
            microbatch_tokens=arguments.microbatch_tokens,
            supervised=supervised,
        )
    else:
        measure_one = partial(
            contenders.measure_trl_sft if supervised else contenders.measure_trl,
            rows_per_pass=arguments.rows_per_pass,
            variant=VARIANTS[arguments.contender],
        )
    return measure_one(SMOLLM2, sequences, arguments.steps)


def _arguments() -> argparse.Namespace:
    parser = measurements.argument_parser(__doc__)
    parser.add_argument(
        "--updates", nargs="+", choices=list(UPDATES), default=list(UPDATES), help="what to measure"
    )
    names = sorted({name for contenders in UPDATES.values() for name in contenders})
    parser.add_argument("--contenders", nargs="+", choices=names, default=names, help="who takes part")
    parser.add_argument("--steps", type=int, default=2, help="optimizer steps of one run that are counted")
    parser.add_argument("--microbatch-tokens", type=int, default=1024, help="tokens of one pass, ours")
    parser.add_argument("--rows-per-pass", type=int, default=8, help="sequences of one pass, TRL's")
    parser.add_argument("--sequences", type=int, default=SEQUENCES, help="sequences of the batch, in eights")
    return measurements.parse_arguments(parser)


if __name__ == "__main__":
    main()
