"""AdamW over the rows of the weights that a rank has.

Its state is written in the format of `local`, whatever the number of ranks: any number of ranks, and `local`,
can continue from a checkpoint. torch's own format for distributed checkpoints is not used: its index is a
pickle, which nothing here reads, and its files depend on the number of ranks.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from erl_pipeline.config.optimizer import OptimizerConfig
from erl_pipeline.trainers.fsdp2.gathered_file import write_gathered
from erl_pipeline.trainers.fsdp2.sharding import ProcessRanks, own_rows
from erl_pipeline.trainers.local.optimizer import (
    TENSORS,
    PolicyOptimizer,
    restore_optimizer,
    write_progress,
)


class ShardedOptimizer(PolicyOptimizer):
    """`PolicyOptimizer` of a model that `shard` has spread over ranks."""

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
        masters = [master for master in self._masters.values() if master.grad is not None]
        own = torch.nn.utils.get_total_norm([master.grad for master in masters if master.grad is not None])
        norms = [float(text) for text in self._ranks.exchange(json.dumps(float(own)))]
        norm = math.sqrt(sum(each * each for each in norms))
        torch.nn.utils.clip_grads_with_norm_(masters, self.config.max_grad_norm, torch.tensor(norm))
        return norm

    def _trained_weights(self, model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
        return {name: torch.nn.Parameter(own_rows(weight)) for name, weight in self._sharded.items()}


def save_sharded_optimizer(optimizer: ShardedOptimizer, folder: Path, ranks: ProcessRanks) -> None:
    """Write what `save_optimizer` writes for a whole model; rank 0 writes, one tensor at a time."""
    write_gathered(folder / TENSORS, optimizer.tensors(), ranks)
    if ranks.rank == 0:
        write_progress(optimizer, folder)


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
