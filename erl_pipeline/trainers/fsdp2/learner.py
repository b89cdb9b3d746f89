"""The trainer on one rank: the same updates as `local`, on its part of the weights and tokens.

The state of its AdamW is written in the format of `local`, whatever the number of ranks: any number of ranks,
and `local`, can continue from a checkpoint. torch's own format for distributed checkpoints is not used: its
index is a pickle, which nothing here reads, and its files depend on the number of ranks.
"""

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
import gc
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from erl_pipeline.config.optimizer import OptimizerConfig
from erl_pipeline.engines.probe import make_probe, save_probe
from erl_pipeline.policies.checkpoints import MODEL, StoredPolicy
from erl_pipeline.trainers.fsdp2.checkpoint import optimizer_files, write_policy
from erl_pipeline.trainers.fsdp2.sharding import ProcessRanks, own_rows, shard
from erl_pipeline.trainers.fsdp2.sleeping import SleepingTensors
from erl_pipeline.trainers.fsdp2.work import Begin, BeginState, FineTune, Reinforce, Save, ScoreTokens
from erl_pipeline.trainers.interface import OnStep, Reinforcement, SupervisedTraining
from erl_pipeline.trainers.local.optimizer import (
    PolicyOptimizer,
    restore_optimizer,
    write_progress,
)
from erl_pipeline.trainers.local.optimizer_steps import Learner
from erl_pipeline.trainers.local.reinforcement import reinforce
from erl_pipeline.trainers.local.self_distillation import token_scores
from erl_pipeline.trainers.local.supervised import fine_tune_supervised
from erl_pipeline.trainers.metrics import FineTuneMetrics, UpdateMetrics
from erl_pipeline.trainers.sequences import TokenScores, TrainingSequence
from storage.artifacts.late_files import LateFiles


class ShardedOptimizer(PolicyOptimizer):
    """`PolicyOptimizer` over the rows that this rank has of a model that `shard` has spread over ranks."""

    def __init__(self, model: torch.nn.Module, config: OptimizerConfig, ranks: ProcessRanks) -> None:
        self._ranks = ranks
        self._sharded = super()._trained_weights(model)
        super().__init__(model, config)

    def collect_gradients(self) -> None:
        """Take the gradients of the last backward pass, which are already added up over the ranks."""
        for name, weight in self._sharded.items():
            if weight.grad is None:
                continue
            gradient, rows = own_rows(weight.grad), self._weights[name]
            rows.grad = gradient if rows.grad is None else rows.grad + gradient
            weight.grad = None
        super().collect_gradients()

    def clip_gradients(self) -> float:
        """As `PolicyOptimizer.clip_gradients`, by the norm over the rows of all ranks."""
        self.hand_over_gradients()
        masters = [master for master in self._masters.values() if master.grad is not None]
        own = torch.nn.utils.get_total_norm([master.grad for master in masters if master.grad is not None])
        norms = [float(text) for text in self._ranks.exchange(json.dumps(float(own)))]
        norm = math.sqrt(sum(each * each for each in norms))
        torch.nn.utils.clip_grads_with_norm_(masters, self.config.max_grad_norm, torch.tensor(norm))
        return norm

    def _trained_weights(self, model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
        return {name: torch.nn.Parameter(own_rows(weight)) for name, weight in self._sharded.items()}


def load_sharded_optimizer(
    model: torch.nn.Module, config: OptimizerConfig, folder: Path, ranks: ProcessRanks
) -> ShardedOptimizer:
    """As `load_optimizer`; only this rank's rows of each tensor are read."""

    def read(file: Any, name: str) -> torch.Tensor:
        part = file.get_slice(name)
        shape = part.get_shape()
        rows: torch.Tensor = part[ranks.rows(shape[0])] if shape else file.get_tensor(name)
        return rows

    optimizer = ShardedOptimizer(model, config, ranks)
    restore_optimizer(optimizer, folder, read)
    return optimizer


class RankLearner:
    """A policy that is spread over the ranks, and its optimizer. All ranks call the same methods."""

    def __init__(self, begin: Begin, ranks: ProcessRanks) -> None:
        self._ranks = ranks
        self._policy = begin.stored.load(torch.device("cpu"))
        shard(self._policy.model, ranks)
        self._optimizer = load_sharded_optimizer(self._policy.model, begin.optimizer, begin.checkpoint, ranks)
        self._learner = Learner(self._policy.model, self._optimizer, ranks, begin.passes)
        self._sleeping = SleepingTensors(ranks.device)

    def reinforce(
        self, work: Reinforce, sequences: Sequence[TrainingSequence], on_step: OnStep
    ) -> UpdateMetrics:
        """`Trainer.reinforce`; each rank returns the metrics of all."""
        stored = work.reference
        whole = Reinforcement(
            sequences, work.objective, work.update, work.seed, stored, work.replay, work.distillation
        )
        load = None if stored is None else lambda: self._model(stored)
        return reinforce(self._learner, whole, load, on_step)

    def _model(self, stored: StoredPolicy | Literal["own_base"] | None) -> PreTrainedModel:
        if stored is None or stored == "own_base":
            return self._policy.model
        model = stored.load(torch.device("cpu")).model
        shard(model, self._ranks)
        return model

    def fine_tune(
        self, work: FineTune, sequences: Sequence[TrainingSequence], on_step: OnStep
    ) -> FineTuneMetrics:
        """`Trainer.fine_tune_supervised`; each rank returns the metrics of all."""
        rates = work.rates
        rate = None if rates is None else lambda step: rates[step - 1]
        return fine_tune_supervised(
            self._learner, SupervisedTraining(sequences, work.settings, work.seed, rate), on_step
        )

    def scores(
        self, sequences: Sequence[TrainingSequence], microbatch_tokens: int, entropies: bool
    ) -> list[torch.Tensor]:
        """Log-probabilities or entropies of each sequence's trained tokens."""
        with self._learner.ready(gradient_checkpointing=False) as forward:
            return forward.sequence_scores(sequences, microbatch_tokens)[int(entropies)]

    def token_scores(self, work: ScoreTokens, sequences: Sequence[TrainingSequence]) -> list[TokenScores]:
        """`Trainer.token_scores`; each rank returns those of all."""
        model, own_base = self._model(work.policy), work.policy == "own_base"
        found = token_scores(self._learner, model, sequences, work.microbatch_tokens, work.top_k, own_base)
        if model is not self._policy.model:
            del model
            gc.collect()  # a sharded model refers to itself, and would stay in memory
        return found

    def save(self, work: Save) -> None:
        """`Trainer.save`; see `erl_pipeline.trainers.fsdp2.checkpoint`."""
        write_policy(self._policy, work.folder / MODEL, self._ranks, work.file_bytes)
        probe = make_probe(self._policy.model)
        self._ranks.let_go_of_weights(self._policy.model)
        if work.state:
            files = optimizer_files(self._optimizer, self._ranks, work.file_bytes)
            files.write(work.folder, self._ranks)
        if self._ranks.rank == 0:
            save_probe(self._policy, work.folder, probe)
            write_progress(self._optimizer, work.folder)

    def begin_state(self, work: BeginState, late_files: LateFiles) -> dict[str, int]:
        """`Trainer.begin_state`; each rank returns the sizes of all files."""
        self._ranks.let_go_of_weights(self._policy.model)
        files = optimizer_files(self._optimizer, self._ranks, work.file_bytes)
        files.begin(work.folder, self._ranks, late_files)
        return files.sizes

    def sleep(self) -> None:
        """Leave the device to others until `wake`: weights and the optimizer's state go to host memory."""
        model = self._policy.model
        self._ranks.let_go_of_weights(model)
        gc.collect()  # What refers to itself would keep its memory there.
        weights = (own_rows(each) if isinstance(each, DTensor) else each for each in model.parameters())
        self._sleeping.sleep([*weights, *model.buffers(), *self._optimizer.held()])

    def wake(self) -> None:
        """Be as before `sleep`."""
        self._sleeping.wake()
