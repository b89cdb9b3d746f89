"""An update in one process, and in several that share its weights: tokens per second, memory, losses, bytes.

    make smollm2
    python benchmarks/sharded_training.py --runs 2 --write

All contenders take the same optimizer steps on the same sequences, with the lengths of FrozenLake rollouts,
and with the same total number of threads. `start` is the time until the processes have started and loaded the
policy; the first step of each run is not counted. Memory is the peak resident memory of a training process.
A further stage takes one step and saves: continued by the trainer of before, whose processes still run, or
begun by a new one, which reads what was saved. Both must save the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import measurements
import psutil
from measurements import SMOLLM2, Column, Figures, ResidentMemory
from workloads.batches import read_batch, token_count, training_sequences

if TYPE_CHECKING:
    from erl_pipeline.trainers.interface import Trainer, TrainingStart

CONTENDERS = {"local": 0, "fsdp2, 1 process": 1, "fsdp2, 2 processes": 2}
COLUMNS = (
    Column("tokens_per_second", "tokens/s"),
    Column("peak_bytes", "peak GB of a process", 2, 1e-9),
    Column("start_seconds", "start, s"),
    Column("save_seconds", "save, s"),
    Column("kept_seconds", "continued stage, s"),
    Column("new_seconds", "new stage, s"),
    Column("first_loss", "first loss", 6),
    Column("last_loss", "last loss", 6),
)
_LEARNING_RATE = 1e-5


def main() -> None:
    arguments = _arguments()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    if arguments.contender:
        arguments.figures.write_text(json.dumps(measure(arguments)))
        return
    measurements.require_checkpoint(SMOLLM2)
    machine = measurements.describe_machine(arguments.threads, ["torch", "transformers"])
    options = [
        *("--steps", str(arguments.steps)),
        *("--sequences", str(arguments.sequences)),
        *("--microbatch-tokens", str(arguments.microbatch_tokens)),
        *("--threads", str(arguments.threads)),
    ]
    taking_part = [name for name in CONTENDERS if name in arguments.contenders]
    runs = measurements.alternate(taking_part, arguments.runs, options)
    table = measurements.print_table(runs, COLUMNS, taking_part[0])
    same = {name: len({figures["bytes"] for figures in measured}) == 1 for name, measured in runs.items()}
    said = "; ".join(f"{name} {'yes' if equal else 'NO'}" for name, equal in same.items())
    print(f"the same bytes in all {arguments.runs} runs: {said}")
    if arguments.write:
        note = (
            f"{arguments.sequences} sequences, bf16, {arguments.microbatch_tokens} tokens a pass, "
            f"{arguments.runs} runs of {arguments.steps} steps, medians (least to most). "
            f"The same bytes in all runs: {said}."
        )
        measurements.publish("sharded_training", machine, {"update": runs}, note, table)


def measure(arguments: argparse.Namespace) -> Figures:
    """Train and save with one contender, in this process."""
    import torch

    from erl_pipeline.config.optimizer import FineTuneConfig, OptimizerConfig
    from erl_pipeline.policies.checkpoints import CheckpointParts, StoredPolicy, WeightsSettings
    from erl_pipeline.trainers.interface import SupervisedTraining, TrainerContext, TrainingStart

    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as scratch:

        def start(checkpoint: Path, model: Path) -> TrainingStart:
            stored = StoredPolicy(
                CheckpointParts("", "", model.absolute(), None),
                WeightsSettings(dtype="bfloat16", lora=None, adapter_seed=None),
            )
            return TrainingStart(
                checkpoint,
                stored.load,
                OptimizerConfig(learning_rate=_LEARNING_RATE),
                TrainerContext(stored, Path(scratch), arguments.threads),
            )

        vocabulary = json.loads((SMOLLM2 / "config.json").read_text())["vocab_size"]
        batch = read_batch("first attempts", vocabulary, arguments.sequences)
        rows = training_sequences(batch, supervised=True)
        trainer = _trainer(arguments.contender, start(Path(scratch), SMOLLM2))
        times: list[float] = []
        losses: list[float] = []

        def on_step(_step: int, loss: float) -> None:
            times.append(time.perf_counter())
            losses.append(loss)

        begun = time.perf_counter()
        trainer.logprobs(rows[:1], arguments.microbatch_tokens)
        start_seconds = time.perf_counter() - begun
        settings = FineTuneConfig(steps=arguments.steps + 1, microbatch_tokens=arguments.microbatch_tokens)
        with ResidentMemory(psutil.Process().children(recursive=True)) as memory:
            trainer.fine_tune_supervised(SupervisedTraining(rows, settings, seed=0), on_step)
        tokens = token_count(batch)
        begun = time.perf_counter()
        saved = Path(scratch) / "saved"
        saved.mkdir()
        trainer.save(saved)
        save_seconds = time.perf_counter() - begun

        def stage(trainer: Trainer, folder: str) -> float:
            begun = time.perf_counter()
            (Path(scratch) / folder).mkdir()
            one = settings.model_copy(update={"steps": 1})
            trainer.fine_tune_supervised(SupervisedTraining(rows, one, seed=1))
            trainer.save(Path(scratch) / folder)
            trainer.close()
            return time.perf_counter() - begun

        kept_seconds = stage(trainer, "kept")
        del trainer
        new_seconds = stage(_trainer(arguments.contender, start(saved, saved / "model")), "new")
        if _digest(Path(scratch) / "kept") != _digest(Path(scratch) / "new"):
            raise SystemExit("a trainer that continues saves other bytes than a new one")
        return {
            "tokens_per_second": arguments.steps * tokens / (times[-1] - times[0]),
            "peak_bytes": memory.peak,
            "start_seconds": start_seconds,
            "save_seconds": save_seconds,
            "kept_seconds": kept_seconds,
            "new_seconds": new_seconds,
            "first_loss": losses[0],
            "last_loss": losses[-1],
            "bytes": _digest(saved),
        }


def _trainer(contender: str, start: TrainingStart) -> Trainer:
    from erl_pipeline.trainers.fsdp2.trainer import Fsdp2Trainer
    from erl_pipeline.trainers.local.trainer import LocalTrainer

    processes = CONTENDERS[contender]
    return Fsdp2Trainer(processes, start) if processes else LocalTrainer(start)


def _digest(folder: Path) -> float:
    """A digest of the bytes of all weights in a folder, as a number that a float holds exactly."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.safetensors")):
        found.update(path.read_bytes())
    return float(int(found.hexdigest()[:12], 16))


def _arguments() -> argparse.Namespace:
    parser = measurements.argument_parser(__doc__)
    parser.add_argument("--steps", type=int, default=3, help="optimizer steps that are counted")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--microbatch-tokens", type=int, default=2048)
    parser.add_argument("--contenders", nargs="*", default=list(CONTENDERS), choices=list(CONTENDERS))
    return measurements.parse_arguments(parser)


if __name__ == "__main__":
    main()
