"""The reinforcement-learning update."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import torch
from transformers import PreTrainedModel

from erl_pipeline.config.objective import DecoupledCorrection, ObjectiveConfig
from erl_pipeline.config.optimizer import UpdateConfig
from erl_pipeline.policies.adapters import without_adapter
from erl_pipeline.trainers.local.divergence import raise_if_diverged
from erl_pipeline.trainers.local.forward import PassCounts, PolicyForward, ready_for_training
from erl_pipeline.trainers.local.metrics import UpdateMetrics
from erl_pipeline.trainers.local.optimizer import PolicyOptimizer
from erl_pipeline.trainers.local.policy_loss import PolicyLoss
from erl_pipeline.trainers.local.sequences import TrainingSequence
from erl_pipeline.trainers.local.statistics import Statistics
from erl_pipeline.trainers.local.token_columns import token_columns


def update_policy(
    model: PreTrainedModel,
    sequences: Sequence[TrainingSequence],
    objective: ObjectiveConfig,
    update: UpdateConfig,
    optimizer: PolicyOptimizer,
    *,
    reference_model: PreTrainedModel | None = None,
    seed: int,
    on_step: Callable[[int, float], None] | None = None,
) -> UpdateMetrics:
    """Change the model's weights by `update.epochs * update.minibatches` steps on the given sequences.

    Sequences with advantage 0 are left out, unless the KL or entropy term wants them. `seed` decides
    how prompts are dealt to minibatches. `on_step` is told each optimizer step (from 1) and its loss.
    `model` itself as `reference_model` stands for its base, without its adapter.

    Raises:
        TrainingDiverged: a loss or gradient is not finite; the step was not taken.
        InputError: the model's architecture cannot be trained (see `ready_for_training`).
        ValueError: a sequence lacks the sampler's log-probabilities, or the KL term its reference model.
    """
    if objective.kl_coefficient > 0 and reference_model is None:
        raise ValueError("objective.kl_coefficient is above 0, but no reference model was given")
    regularised = objective.kl_coefficient > 0 or objective.entropy_coefficient > 0
    started = time.perf_counter()
    trainable = [sequence for sequence in sequences if sequence.trained_offsets]
    kept = [sequence for sequence in trainable if sequence.advantage != 0.0 or regularised]
    for sequence in kept:
        if not sequence.behaviour_logprobs:
            raise ValueError(f"trajectory {sequence.trajectory_id} has no log-probabilities of its sampler")

    statistics = Statistics()
    step, passes = 0, PassCounts()
    references = olds = None
    if reference_model is not None and objective.kl_coefficient > 0:
        base = without_adapter(model) if reference_model is model else nullcontext()
        with base, ready_for_training(reference_model, gradient_checkpointing=False) as forward:
            references = _logprobs(forward, kept, update)
    with ready_for_training(model, update.gradient_checkpointing) as forward:
        shares_prompts = forward.shares_prompts
        if _needs_old_logprobs(objective, update):
            olds = _logprobs(forward, kept, update)
        for members in _minibatches(kept, update, seed):
            batch = [kept[index] for index in members]
            columns = token_columns(batch, objective.loss_normalization, forward.device)
            loss = PolicyLoss(
                objective,
                columns,
                old_logprobs=None if olds is None else torch.cat([olds[index] for index in members]),
                reference_logprobs=None
                if references is None
                else torch.cat([references[index] for index in members]),
                statistics=statistics,
                measure_mismatch=step == 0,
            )
            step += 1
            passes += forward.backward_batch(
                batch, columns.temperatures, update.microbatch_tokens, loss.of, optimizer.collect_gradients
            )
            grad_norm = optimizer.clip_gradients()
            raise_if_diverged(step, {**loss.parts(), "grad_norm": grad_norm}, batch)
            optimizer.step()
            statistics.observe("policy_loss", torch.tensor(loss.parts()["policy_loss"]))
            statistics.observe("grad_norm", torch.tensor(grad_norm))
            if on_step is not None:
                on_step(step, loss.parts()["policy_loss"])

    seconds = time.perf_counter() - started
    sequence_tokens = update.epochs * sum(len(s.prompt_token_ids) + len(s.response_token_ids) for s in kept)
    return UpdateMetrics(
        policy_loss=statistics.mean("policy_loss"),
        kl_loss=statistics.mean("kl"),
        entropy=statistics.mean("entropy"),
        grad_norm=statistics.mean("grad_norm"),
        ratio_mean=statistics.mean("ratio"),
        clip_fraction=statistics.mean("clipped"),
        mismatch_mean=statistics.mean("mismatch"),
        mismatch_max=statistics.maximum("mismatch"),
        mismatch_kl=statistics.mean("mismatch_kl"),
        importance_mean=statistics.mean("importance"),
        importance_capped=statistics.mean("importance_capped"),
        seconds=seconds,
        tokens_per_second=sequence_tokens / seconds,
        optimizer_steps=step,
        microbatches=passes.microbatches,
        sequences=len(kept),
        dropped_zero_advantage=len(trainable) - len(kept),
        dropped_untrained=len(sequences) - len(trainable),
        trained_tokens=update.epochs * sum(len(sequence.trained_offsets) for sequence in kept),
        sequence_tokens=sequence_tokens,
        input_tokens=passes.input_tokens,
        shares_prompts=int(shares_prompts),
    )


def _needs_old_logprobs(objective: ObjectiveConfig, update: UpdateConfig) -> bool:
    """In an update of one step the policy before the step is the one at hand; a pass of its own is saved,
    unless weights of whole sequences are wanted."""
    correction = objective.correction
    return isinstance(correction, DecoupledCorrection) and (
        update.optimizer_steps > 1 or correction.level == "sequence"
    )


def _logprobs(
    forward: PolicyForward, sequences: Sequence[TrainingSequence], update: UpdateConfig
) -> list[torch.Tensor]:
    """Log-probabilities of each sequence's trained tokens, at its temperature."""
    counts = [len(sequence.trained_offsets) for sequence in sequences]
    temperatures = torch.tensor([sequence.temperature for sequence in sequences], device=forward.device)
    by_token = temperatures.repeat_interleave(torch.tensor(counts, dtype=torch.long, device=forward.device))
    return list(forward.logprobs(sequences, by_token, update.microbatch_tokens).split(counts))


def _minibatches(
    sequences: Sequence[TrainingSequence], update: UpdateConfig, seed: int
) -> Iterator[list[int]]:
    """Numbers of the sequences of each optimizer step; sequences with one prompt stay together."""
    by_prompt: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, sequence in enumerate(sequences):
        by_prompt[sequence.prompt_token_ids].append(index)
    prompts = list(by_prompt.values())
    parts = min(update.minibatches, len(prompts))
    shuffler = random.Random(seed)
    for _ in range(update.epochs):
        if parts > 1:
            shuffler.shuffle(prompts)
        for part in range(parts):
            share = prompts[part * len(prompts) // parts : (part + 1) * len(prompts) // parts]
            yield sorted(index for members in share for index in members)
