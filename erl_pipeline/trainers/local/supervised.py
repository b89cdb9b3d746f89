"""The supervised update."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from transformers import PreTrainedModel

from erl_pipeline.config.optimizer import FineTuneConfig
from erl_pipeline.trainers.local.divergence import raise_if_diverged
from erl_pipeline.trainers.local.forward import PassCounts, ready_for_training
from erl_pipeline.trainers.local.metrics import FineTuneMetrics
from erl_pipeline.trainers.local.optimizer import PolicyOptimizer
from erl_pipeline.trainers.local.packing import Microbatch
from erl_pipeline.trainers.local.sequences import TrainingSequence
from erl_pipeline.trainers.local.token_columns import token_columns
from erl_pipeline.trainers.local.token_logprobs import TokenLoss


def fine_tune(
    model: PreTrainedModel,
    rows: Sequence[TrainingSequence],
    config: FineTuneConfig,
    optimizer: PolicyOptimizer,
    *,
    seed: int,
    on_step: Callable[[int, float], None] | None = None,
) -> FineTuneMetrics:
    """Take `config.steps` optimizer steps on the cross-entropy of the rows' trained tokens.

    The loss of a step is the mean over its tokens, each times its row's weight. No row, no step. `seed`
    decides in which order rows are drawn. `on_step` is told each step (from 1) and its loss in nats.

    Raises:
        TrainingDiverged: a loss or gradient is not finite; the step was not taken.
        InputError: the model's architecture cannot be trained (see `ready_for_training`).
    """
    started = time.perf_counter()
    trainable = [row for row in rows if row.trained_offsets]
    losses: list[float] = []
    grad_norms: list[float] = []
    trained_tokens = sequence_tokens = 0
    passes = PassCounts()
    with ready_for_training(model, config.gradient_checkpointing) as forward:
        for step, batch in enumerate(_batches(trainable, config, seed), start=1):
            columns = token_columns(batch, "token_mean", forward.device)
            loss = torch.zeros((), device=forward.device)
            passes += forward.backward_batch(
                batch,
                columns.temperatures,
                config.microbatch_tokens,
                _cross_entropy(columns.regularizer_weights, loss),
                optimizer.collect_gradients,
            )
            losses.append(float(loss))
            grad_norms.append(optimizer.clip_gradients())
            raise_if_diverged(step, {"loss": losses[-1], "grad_norm": grad_norms[-1]}, batch)
            optimizer.step()
            trained_tokens += len(columns.sequence)
            sequence_tokens += sum(len(row.prompt_token_ids) + len(row.response_token_ids) for row in batch)
            if on_step is not None:
                on_step(step, losses[-1])
        shares_prompts = forward.shares_prompts

    seconds = time.perf_counter() - started
    return FineTuneMetrics(
        loss=sum(losses) / len(losses) if losses else 0.0,
        first_loss=losses[0] if losses else 0.0,
        last_loss=losses[-1] if losses else 0.0,
        grad_norm=sum(grad_norms) / len(grad_norms) if grad_norms else 0.0,
        seconds=seconds,
        tokens_per_second=sequence_tokens / seconds,
        optimizer_steps=len(losses),
        microbatches=passes.microbatches,
        rows=len(trainable),
        dropped_untrained=len(rows) - len(trainable),
        trained_tokens=trained_tokens,
        sequence_tokens=sequence_tokens,
        input_tokens=passes.input_tokens,
        shares_prompts=int(shares_prompts),
    )


def _cross_entropy(weights: torch.Tensor, total: torch.Tensor) -> Callable[[Microbatch], TokenLoss]:
    """`weights`: `[trained]` of the batch; losses are added to the scalar `total` in place."""

    def of(microbatch: Microbatch) -> TokenLoss:
        def loss(logprobs: torch.Tensor, entropies: torch.Tensor, place: slice) -> torch.Tensor:
            share = -(logprobs * weights[microbatch.tokens[place]]).sum()
            total.add_(share.detach())
            return share

        return loss

    return of


def _batches(
    rows: Sequence[TrainingSequence], config: FineTuneConfig, seed: int
) -> Iterator[list[TrainingSequence]]:
    """Rows of each step: all of them, or `batch_rows` dealt from a deck that is shuffled when it runs out."""
    if not rows:
        return
    size = len(rows) if config.batch_rows is None else min(config.batch_rows, len(rows))
    shuffler = random.Random(seed)
    deck: list[TrainingSequence] = []
    for _ in range(config.steps):
        if len(deck) < size:
            deck = list(rows)
            if size < len(rows):
                shuffler.shuffle(deck)
        yield deck[:size]
        deck = deck[size:]
