"""One reinforcement-learning or supervised update, by this project and by TRL, timed in this process."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measurements import Figures, process_memory_and_cpu
from workloads.batches import BatchSequence, token_count, training_sequences

LEARNING_RATE = 1e-6
WARM_UP_STEPS = 1


def measure_ours(
    model_folder: Path, sequences: list[BatchSequence], steps: int, microbatch_tokens: int, supervised: bool
) -> Figures:
    """Time our update on the batch, `steps` times after a first one that is not counted."""
    from erl_pipeline.config.objective import ObjectiveConfig
    from erl_pipeline.config.optimizer import FineTuneConfig, OptimizerConfig, UpdateConfig
    from erl_pipeline.policies.pretrained import load_policy
    from erl_pipeline.trainers.interface import Reinforcement, SupervisedTraining
    from erl_pipeline.trainers.local.optimizer import PolicyOptimizer
    from erl_pipeline.trainers.local.optimizer_steps import Learner
    from erl_pipeline.trainers.local.reinforcement import reinforce
    from erl_pipeline.trainers.local.supervised import fine_tune_supervised

    model = load_policy(model_folder, dtype="bfloat16").model
    optimizer = PolicyOptimizer(model, OptimizerConfig(learning_rate=LEARNING_RATE))
    rows = training_sequences(sequences, supervised)

    def make_steps(count: int) -> None:
        for _ in range(count):
            if supervised:
                config = FineTuneConfig(steps=1, microbatch_tokens=microbatch_tokens)
                fine_tune_supervised(Learner(model, optimizer), SupervisedTraining(rows, config, seed=0))
            else:
                update = UpdateConfig(microbatch_tokens=microbatch_tokens)
                work = Reinforcement(rows, ObjectiveConfig(), update, seed=0)
                reinforce(Learner(model, optimizer), work)

    make_steps(WARM_UP_STEPS)
    return _timed(lambda: make_steps(steps), steps, token_count(sequences))


def _timed(work: Callable[[], object], steps: int, tokens: int) -> Figures:
    before, started = process_memory_and_cpu(), time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    after = process_memory_and_cpu()
    return figures_of(seconds, after["cpu_seconds"] - before["cpu_seconds"], steps, tokens)


def figures_of(seconds: float, cpu_seconds: float, steps: int, tokens: int) -> Figures:
    return {
        "tokens_per_second": tokens * steps / seconds,
        "tokens_per_cpu_second": tokens * steps / cpu_seconds,
        "seconds_per_step": seconds / steps,
        "peak_bytes": process_memory_and_cpu()["peak_bytes"],
    }


def measure_trl(
    model_folder: Path, sequences: list[BatchSequence], steps: int, rows_per_pass: int, variant: str
) -> Figures:
    """Time TRL's GRPOTrainer on the batch. Its rollout function immediately returns the batch's tokens.

    The time counts from the beginning of a step to its end, without the time in which the trainer prepares
    its inputs (rollout function, rewards, padding).

    Args:
        rows_per_pass: sequences in one forward and backward pass.
        variant: `bf16` has bf16 weights and moments; `mixed` has fp32 weights and bf16 autocast;
            `checkpointed` is `bf16` with gradient checkpointing, TRL's default.
    """
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    dtype = torch.float32 if variant == "mixed" else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=dtype)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    clock = StepClock()

    def rollout(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        return {
            "prompt_ids": [list(one.prompt_token_ids) for one in sequences],
            "completion_ids": [list(one.response_token_ids) for one in sequences],
            "logprobs": [[-10.0] * len(one.response_token_ids) for one in sequences],
        }

    class Timed(GRPOTrainer):  # type: ignore[misc]
        def _prepare_inputs(self, batch: Any) -> Any:
            with clock.excluded():
                return super()._prepare_inputs(batch)

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            **common_trl_settings(folder, steps, len(sequences), rows_per_pass, variant),
            num_generations=8,
            max_completion_length=max(len(one.response_token_ids) for one in sequences),
            beta=0.0,
        )
        trainer = Timed(
            model=model,
            # Every second sequence is rewarded, so that no group has zero advantage.
            reward_funcs=lambda completions, **_: [float(place % 2) for place in range(len(completions))],
            args=config,
            train_dataset=Dataset.from_dict({"prompt": [f"{place}" for place in range(8)]}),
            processing_class=tokenizer,
            rollout_func=rollout,
            callbacks=[clock.callback()],
        )
        trainer.train()
    return clock.figures(steps, token_count(sequences))


def measure_trl_sft(
    model_folder: Path, sequences: list[BatchSequence], steps: int, rows_per_pass: int, variant: str
) -> Figures:
    """Time TRL's SFTTrainer on the same rows, with loss only on completions; variants as in `measure_trl`."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    dtype = torch.float32 if variant == "mixed" else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=dtype)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    clock = StepClock()
    rows = {
        "input_ids": [[*one.prompt_token_ids, *one.response_token_ids] for one in sequences],
        "completion_mask": [
            [0] * len(one.prompt_token_ids) + [1] * len(one.response_token_ids) for one in sequences
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        config = SFTConfig(
            **common_trl_settings(folder, steps, len(sequences), rows_per_pass, variant),
            completion_only_loss=True,
            max_length=None,
        )
        trainer = SFTTrainer(
            model=model,
            args=config,
            train_dataset=Dataset.from_dict(rows),
            processing_class=tokenizer,
            callbacks=[clock.callback()],
        )
        trainer.train()
    return clock.figures(steps, token_count(sequences))


def common_trl_settings(
    folder: str, steps: int, sequences: int, rows_per_pass: int, variant: str
) -> dict[str, Any]:
    """TRL's settings for optimizer steps on all sequences, at a constant learning rate, without logs, saves
    or evaluation."""
    return {
        "output_dir": folder,
        "max_steps": WARM_UP_STEPS + steps,
        "per_device_train_batch_size": rows_per_pass,
        "gradient_accumulation_steps": sequences // rows_per_pass,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "gradient_checkpointing": variant == "checkpointed",
        "bf16": True,
        "use_cpu": not torch.cuda.is_available(),
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "seed": 0,
    }


class StepClock:
    """Wall and CPU seconds of optimizer steps, less what is excluded; the first steps are not counted."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self._steps = 0

    def excluded(self) -> Any:
        """A context whose time does not count."""
        return _Excluded(self)

    def add(self, sign: float) -> None:
        if self._steps >= WARM_UP_STEPS:
            self.seconds += sign * time.perf_counter()
            self.cpu_seconds += sign * process_memory_and_cpu()["cpu_seconds"]

    def callback(self) -> Any:
        from transformers import TrainerCallback

        clock = self

        class Callback(TrainerCallback):  # type: ignore[misc]
            def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                clock.add(-1.0)

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                clock.add(1.0)
                clock._steps += 1

        return Callback()

    def figures(self, steps: int, tokens: int) -> Figures:
        if self._steps != WARM_UP_STEPS + steps:
            raise RuntimeError(f"the trainer made {self._steps} optimizer steps, not {WARM_UP_STEPS + steps}")
        return figures_of(self.seconds, self.cpu_seconds, steps, tokens)


class _Excluded:
    def __init__(self, clock: StepClock) -> None:
        self._clock = clock

    def __enter__(self) -> None:
        self._clock.add(1.0)

    def __exit__(self, *_: object) -> None:
        self._clock.add(-1.0)


os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
