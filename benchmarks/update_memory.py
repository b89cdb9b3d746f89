"""Peak memory of an update on this machine, compared with what `erl-pipeline doctor --config` says: measured
on tensors without memory, and estimated by arithmetic.

    make smollm2
    python benchmarks/update_memory.py configs/frozen_lake_smollm2.yaml
    python benchmarks/update_memory.py configs/frozen_lake_smollm2.yaml --tokens 2048

Each size is measured with the trainer `local`, and with two processes of `fsdp2`. A measurement is the peak
of resident memory in two updates of one full microbatch, above what the process had before it loaded the
model. Each has new processes, whose allocator gives large blocks back as soon as they are freed
(MALLOC_MMAP_THRESHOLD_).
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import measurements
from measurements import ResidentMemory

from erl_pipeline.config.loading import load_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.policies.checkpoints import policy_traits
from erl_pipeline.trainers.interface import Reinforcement

PROMPT_TOKENS, GROUP = 512, 8
TRAINERS = ("local", "fsdp2")
PROCESSES = 2


def main() -> None:
    arguments = _arguments()
    if arguments.trainer:
        measure(arguments)
        return
    measurements.require_checkpoint(measurements.SMOLLM2)
    for tokens in arguments.tokens:
        for trainer in TRAINERS:
            print(json.dumps({"trainer": trainer, "tokens": tokens, **compare(arguments, trainer, tokens)}))


def configured(arguments: argparse.Namespace, trainer: str, tokens: int) -> RunConfig:
    """The configuration with a trainer and a size, and one group for each process."""
    processes = PROCESSES if trainer == "fsdp2" else 1
    settings = [
        *arguments.set,
        "distillation=off",  # the supervised update's settings could otherwise decide the estimate
        f"update.microbatch_tokens={tokens}",
        f"rollouts.group_size={GROUP}",
        f"rollouts.tasks_per_iteration={processes}",
    ]
    if trainer == "fsdp2":
        settings.append(f"trainer={{type: fsdp2, processes: {PROCESSES}}}")
    return load_config(arguments.config, settings)


def compare(arguments: argparse.Namespace, trainer: str, tokens: int) -> dict[str, float]:
    """Gigabytes of one process, simulated, estimated and measured."""
    from erl_pipeline.sizing.formulas import estimate_memory, model_size
    from erl_pipeline.sizing.simulated_work import simulate, simulated_work

    config = configured(arguments, trainer, tokens)
    sequence = PROMPT_TOKENS + (tokens - PROMPT_TOKENS) // GROUP
    work = simulated_work(config, "cpu", sequence_tokens=sequence, prompt_tokens=PROMPT_TOKENS)
    simulated = simulate(work).peaks["cpu"].bytes
    parts = estimate_memory(config, model_size(config))
    estimated = sum(part.bytes for part in parts if part.place == "trainer")
    measured = _measure(arguments, trainer, tokens)
    return {
        "measured_gb": round(measured / 1e9, 3),
        "simulated_gb": round(simulated / 1e9, 3),
        "estimated_gb": round(estimated / 1e9, 3),
        "simulated_over_measured": round(simulated / measured, 3),
        "estimated_over_measured": round(estimated / measured, 3),
    }


def _measure(arguments: argparse.Namespace, trainer: str, tokens: int) -> int:
    """Run the processes of a trainer; the most that any of them took."""
    from erl_pipeline.trainers.fsdp2.launcher import DETERMINISTIC_VARIABLE, TIMEOUT_VARIABLE

    count = PROCESSES if trainer == "fsdp2" else 1
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(count):
            environment = {
                **os.environ,
                "MALLOC_MMAP_THRESHOLD_": "1048576",
                "OMP_NUM_THREADS": str(arguments.threads),
                "GLOO_SOCKET_IFNAME": "lo",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(count),
                DETERMINISTIC_VARIABLE: "0",
                TIMEOUT_VARIABLE: "1800",
            }
            words = [str(arguments.config), "--tokens", str(tokens), "--trainer", trainer]
            words += ["--figure", f"{folder}/{rank}", *(f"--set={each}" for each in arguments.set)]
            processes.append(subprocess.Popen([sys.executable, __file__, *words], env=environment))
        statuses = [process.wait() for process in processes]
        if any(statuses):
            raise SystemExit(f"a process of {trainer} has failed")
        return max(int(Path(folder, str(rank)).read_text()) for rank in range(count))


def measure(arguments: argparse.Namespace) -> None:
    """Train in this process, as a rank where there are several, and write how much memory that took."""
    import torch

    from erl_pipeline.policies.checkpoints import CheckpointParts, StoredPolicy, WeightsSettings
    from erl_pipeline.sizing.simulated_work import simulated_sequences, simulated_work
    from erl_pipeline.trainers.fsdp2.learner import RankLearner
    from erl_pipeline.trainers.fsdp2.sharding import join_ranks
    from erl_pipeline.trainers.fsdp2.work import Begin, Reinforce
    from erl_pipeline.trainers.interface import TrainingStart
    from erl_pipeline.trainers.local.trainer import LocalTrainer

    torch.set_num_threads(arguments.threads)
    (tokens,) = arguments.tokens
    config = configured(arguments, arguments.trainer, tokens)
    traits = policy_traits(config.policy)
    assert traits.model is not None
    sequence = PROMPT_TOKENS + (tokens - PROMPT_TOKENS) // GROUP
    work = simulated_work(config, "cpu", sequence_tokens=sequence, prompt_tokens=PROMPT_TOKENS)
    batch = simulated_sequences(work)
    stored = StoredPolicy(
        CheckpointParts("", "", Path(traits.model).absolute(), None),
        WeightsSettings(dtype=traits.dtype, lora=traits.lora, adapter_seed=0 if traits.lora else None),
    )
    ranks = join_ranks() if arguments.trainer == "fsdp2" else None
    memory = ResidentMemory()
    before = memory.now()
    nothing = Path(tempfile.gettempdir()) / "no optimizer state"
    with memory:
        if ranks is None:
            local = LocalTrainer(TrainingStart(nothing, stored.load, config.optimizer))
            for _ in range(2):  # from the second on, moments exist during the passes
                local.reinforce(Reinforcement(batch, config.objective, config.update, 0))
        else:
            learner = RankLearner(Begin(stored, nothing, config.optimizer), ranks)
            for _ in range(2):
                order = Reinforce(config.objective, config.update, 0, None, None)
                learner.reinforce(order, batch, lambda _step, _loss: None)
    arguments.figure.write_text(str(memory.peak - before))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[1024, 2048], help="input tokens of a microbatch"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--trainer", choices=TRAINERS, help=argparse.SUPPRESS)
    parser.add_argument("--figure", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
