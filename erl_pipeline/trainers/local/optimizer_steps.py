"""Optimizer steps, as both updates take them: gradients of a batch, clipping, a check, the step."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from transformers import PreTrainedModel

from erl_pipeline.trainers.interface import DEFAULT_PASSES, OnStep, Passes
from erl_pipeline.trainers.local.forward import PassCounts, PolicyForward
from erl_pipeline.trainers.local.optimizer import PolicyOptimizer
from erl_pipeline.trainers.local.packing import ALONE, Microbatch, Ranks
from erl_pipeline.trainers.local.preparation import ready_for_training
from erl_pipeline.trainers.local.tokens import TokenLoss
from erl_pipeline.trainers.sequences import TrainingSequence
from storage.errors import TrainingDiverged

_NAMED_TRAJECTORIES = 8


def raise_if_diverged(step: int, numbers: Mapping[str, float], sequences: Sequence[TrainingSequence]) -> None:
    """Raise `TrainingDiverged` where a number of optimizer step `step` (from 1) is not finite.

    The message holds the step, all numbers (loss parts, gradient norm), the trajectories of the batch
    and what to try. It is called before the step is taken, so no weight has changed.
    """
    if all(math.isfinite(number) for number in numbers.values()):
        return
    shown = ", ".join(f"{name} {number:.4g}" for name, number in numbers.items())
    named = ", ".join(sequence.trajectory_id for sequence in sequences[:_NAMED_TRAJECTORIES])
    more = len(sequences) - _NAMED_TRAJECTORIES
    raise TrainingDiverged(
        f"training diverged at optimizer step {step}: {shown}. The batch held {named}"
        f"{f' and {more} more' if more > 0 else ''}. The step was not taken and the last checkpoint is "
        "unchanged. Try a lower optimizer.learning_rate or optimizer.max_grad_norm, policy.dtype float32, or "
        "look at the stored log-probabilities and rewards of these trajectories."
    )


@dataclass(frozen=True)
class Learner:
    """A model and the optimizer of its trainable weights; `ranks`: the processes that share them."""

    model: PreTrainedModel
    optimizer: PolicyOptimizer
    ranks: Ranks = ALONE
    passes: Passes = DEFAULT_PASSES

    def ready(
        self, gradient_checkpointing: bool, model: PreTrainedModel | None = None
    ) -> AbstractContextManager[PolicyForward]:
        """Its model, or another one, made ready for passes; see `ready_for_training`."""
        return ready_for_training(
            self.model if model is None else model, gradient_checkpointing, self.ranks, self.passes
        )


class BatchLoss(Protocol):
    """The loss of one optimizer batch, which arrives in microbatches and is added up."""

    def of(self, microbatch: Microbatch) -> TokenLoss:
        """The loss function of one microbatch."""

    def parts(self) -> Mapping[str, float]:
        """The parts of the loss over all microbatches so far; the first is the one that is reported."""


class OptimizerSteps:
    """Takes steps and records their number, losses, gradient norms and passes."""

    def __init__(
        self,
        forward: PolicyForward,
        optimizer: PolicyOptimizer,
        microbatch_tokens: int,
        on_step: OnStep | None,
    ) -> None:
        self._forward = forward
        self._optimizer = optimizer
        self._microbatch_tokens = microbatch_tokens
        self._on_step = on_step
        self.losses: list[float] = []
        """The reported part of each step's loss."""
        self.grad_norms: list[float] = []
        """Euclidean norm of each step's gradients, before clipping."""
        self.passes = PassCounts()

    def take(self, batch: Sequence[TrainingSequence], temperatures: torch.Tensor, loss: BatchLoss) -> None:
        """Take one step on a batch. `temperatures`: `[trained]`.

        Raises `TrainingDiverged`, before the step, where a loss or gradient is not finite.
        """
        grad_norm = self._gradients(batch, temperatures, loss)
        parts = _over_ranks(loss.parts(), self._forward.ranks)
        step = len(self.losses) + 1
        raise_if_diverged(step, {**parts, "grad_norm": grad_norm}, batch)
        self._optimizer.step()
        self.losses.append(next(iter(parts.values())))
        self.grad_norms.append(grad_norm)
        if self._on_step is not None:
            self._on_step(step, self.losses[-1])

    def grad_norm(
        self, batch: Sequence[TrainingSequence], temperatures: torch.Tensor, loss: BatchLoss
    ) -> float:
        """The Euclidean norm of a loss's gradients; no step is taken. Arguments as in `take`."""
        norm = self._gradients(batch, temperatures, loss)
        self._optimizer.drop_gradients()
        return norm

    def _gradients(
        self, batch: Sequence[TrainingSequence], temperatures: torch.Tensor, loss: BatchLoss
    ) -> float:
        """Compute the gradients of a batch, and clip them; returns their norm before that."""
        self.passes += self._forward.backward_batch(
            batch, temperatures, self._microbatch_tokens, loss.of, self._optimizer.collect_gradients
        )
        return self._optimizer.clip_gradients()


def _over_ranks(parts: Mapping[str, float], ranks: Ranks) -> Mapping[str, float]:
    """The parts of a loss, added up over the ranks. Rank 0 always has a microbatch, and so has all parts."""
    if ranks.count == 1:
        return parts
    found = [json.loads(text) for text in ranks.exchange(json.dumps(dict(parts)))]
    return {name: sum(each.get(name, 0.0) for each in found) for name in found[0]}


def mean(values: Sequence[float]) -> float:
    """The mean of the values; 0 without values."""
    return sum(values) / len(values) if values else 0.0


def count_tokens(sequences: Sequence[TrainingSequence]) -> int:
    """Number of prompt and response tokens."""
    return sum(len(row.prompt_token_ids) + len(row.response_token_ids) for row in sequences)
