"""The supervised update."""

import random
import time
from collections.abc import Iterator, Sequence
from itertools import count

import torch

from erl_pipeline.config.optimizer import FineTuneConfig
from erl_pipeline.trainers.interface import OnStep, SupervisedTraining
from erl_pipeline.trainers.local.observations import BatchLog, SequenceLog
from erl_pipeline.trainers.local.optimizer_steps import Learner, OptimizerSteps, count_tokens, mean
from erl_pipeline.trainers.local.packing import Microbatch
from erl_pipeline.trainers.local.tokens import TokenLoss, token_columns
from erl_pipeline.trainers.metrics import FineTuneMetrics, SequenceRecord
from erl_pipeline.trainers.sequences import TrainingSequence


def fine_tune_supervised(
    learner: Learner, work: SupervisedTraining, on_step: OnStep | None = None
) -> FineTuneMetrics:
    """Take as many optimizer steps on the cross-entropy of the trained tokens as the settings say.

    The loss of a step is the mean over its tokens, each times its sequence's weight. Without sequences no
    step is taken.

    Raises:
        TrainingDiverged: a loss or gradient is not finite; the step was not taken.
        InputError: the model's architecture cannot be trained (see `ready_for_training`).
    """
    started = time.perf_counter()
    settings = work.settings
    trainable = [sequence for sequence in work.sequences if sequence.trained_tokens]
    log = SequenceLog(trainable)
    trained_tokens = sequence_tokens = 0
    learner.optimizer.turn_to("supervised", settings.learning_rate)
    with learner.ready(settings.gradient_checkpointing) as forward:
        steps = OptimizerSteps(forward, learner.optimizer, settings.microbatch_tokens, on_step)
        for step, members in enumerate(_batches(range(len(trainable)), settings, work.seed), start=1):
            if work.rate is not None:
                learner.optimizer.turn_to("supervised", work.rate(step))
            batch = [trainable[number] for number in members]
            columns = token_columns(batch, "token_mean", forward.device)
            seen = BatchLog(len(columns.sequence), forward.device)
            steps.take(batch, columns.temperatures, _CrossEntropy(columns.regularizer_weights, seen))
            seen.add_up(learner.ranks)
            log.take(members, seen)
            trained_tokens += len(columns.sequence)
            sequence_tokens += count_tokens(batch)

    seconds = time.perf_counter() - started
    return FineTuneMetrics(
        loss=mean(steps.losses),
        first_loss=steps.losses[0] if steps.losses else 0.0,
        last_loss=steps.losses[-1] if steps.losses else 0.0,
        grad_norm=mean(steps.grad_norms),
        seconds=seconds,
        tokens_per_second=sequence_tokens / seconds,
        optimizer_steps=len(steps.losses),
        microbatches=steps.passes.microbatches,
        rows=len(trainable),
        dropped_untrained=len(work.sequences) - len(trainable),
        trained_tokens=trained_tokens,
        sequence_tokens=sequence_tokens,
        input_tokens=steps.passes.input_tokens,
        shares_prompts=int(forward.shares_prompts),
        attention=forward.attention,
        records=_records(work.sequences, log),
    )


def _records(sequences: Sequence[TrainingSequence], log: SequenceLog) -> list[SequenceRecord]:
    """What was done with each sequence; the log has those with a token to train."""
    numbers = count()
    return [
        log.record(next(numbers), sequence.weight)
        if sequence.trained_tokens
        else SequenceRecord(sequence.weight, "no_tokens")
        for sequence in sequences
    ]


class _CrossEntropy:
    """Weighted cross-entropy of a batch. `weights`: `[trained]`; the log records losses and entropies."""

    def __init__(self, weights: torch.Tensor, log: BatchLog) -> None:
        self._weights = weights
        self._log = log
        self._total = torch.zeros((), device=weights.device)

    def of(self, microbatch: Microbatch) -> TokenLoss:
        def loss(logprobs: torch.Tensor, entropies: torch.Tensor, place: slice) -> torch.Tensor:
            tokens = microbatch.tokens[place]
            losses = -(logprobs * self._weights[tokens])
            self._log.add("loss", losses, tokens)
            self._log.add("entropy", entropies, tokens)
            share = losses.sum()
            self._total.add_(share.detach())
            return share

        return loss

    def parts(self) -> dict[str, float]:
        return {"loss": float(self._total)}


def _batches(rows: Sequence[int], config: FineTuneConfig, seed: int) -> Iterator[list[int]]:
    """Indices of the rows of each step: all of them, or `batch_rows` dealt from a deck. Where too few are
    left, they are dealt first, and then a new deck, which has the same ones last: so each pass has all rows,
    and no step has one twice."""
    if not rows:
        return
    size = len(rows) if config.batch_rows is None else min(config.batch_rows, len(rows))
    shuffler = random.Random(seed)
    deck: list[int] = []
    for _ in range(config.optimizer_steps(len(rows))):
        if len(deck) < size:
            left, deck = deck, list(rows)
            if size < len(rows):
                shuffler.shuffle(deck)
            again = set(left)
            deck = left + [row for row in deck if row not in again] + [row for row in deck if row in again]
        yield deck[:size]
        deck = deck[size:]
