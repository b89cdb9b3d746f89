"""The reinforcement-learning update."""

import gc
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import torch
from transformers import PreTrainedModel

from erl_pipeline.config.objective import UNSAMPLED, DecoupledCorrection, ObjectiveConfig, RoleTerms
from erl_pipeline.config.optimizer import UpdateConfig
from erl_pipeline.config.replay import REPLAYED
from erl_pipeline.objectives.policy_gradient import kl_returns, sequence_log_ratios
from erl_pipeline.policies.adapters import without_adapter
from erl_pipeline.trainers.interface import OnStep, Reinforcement
from erl_pipeline.trainers.local.forward import PackedAttention, PolicyForward
from erl_pipeline.trainers.local.observations import BatchLog, SequenceLog, Statistics
from erl_pipeline.trainers.local.optimizer_steps import Learner, OptimizerSteps, count_tokens, mean
from erl_pipeline.trainers.local.packing import by_prompt
from erl_pipeline.trainers.local.policy_loss import PolicyLoss, ReplayedPart, replay_metrics, without_clip
from erl_pipeline.trainers.local.self_distillation import TaughtPart, distillation_metrics
from erl_pipeline.trainers.local.tokens import TokenColumns, role_columns, token_columns
from erl_pipeline.trainers.metrics import NotTrained, RoleMetrics, SequenceRecord, UpdateMetrics
from erl_pipeline.trainers.sequences import TrainingSequence


def reinforce(
    learner: Learner,
    work: Reinforcement,
    load_reference: Callable[[], PreTrainedModel] | None = None,
    on_step: OnStep | None = None,
) -> UpdateMetrics:
    """Change the model's weights by `update.epochs * update.minibatches` steps.

    The reference model is loaded for its one pass, before the steps, and not kept. If `load_reference` gives
    the model itself, the reference is its base, without the adapter.

    Raises:
        TrainingDiverged: a loss or gradient is not finite; the step was not taken.
        InputError: the model's architecture cannot be trained (see `ready_for_training`).
        ValueError: a sequence lacks the sampler's log-probabilities, or the KL term its reference model.
    """
    if work.objective.needs_reference and load_reference is None:
        raise ValueError("the objective has a KL term, but no reference model was given")
    started = time.perf_counter()
    selection = _select(work)
    references = None
    if load_reference is not None and work.objective.needs_reference:
        references = _reference_logprobs(learner, load_reference(), selection.kept, work.update)
        gc.collect()  # a sharded model refers to itself, and would stay in memory during the steps
        if work.objective.kl_in == "reward":
            selection = replace(selection, kept=_penalized(work, selection.kept, references))
    learner.optimizer.turn_to("reinforcement")
    with learner.ready(work.update.gradient_checkpointing) as forward:
        steps = OptimizerSteps(forward, learner.optimizer, work.update.microbatch_tokens, on_step)
        log = SequenceLog(selection.kept, work.update.record_tokens)
        statistics, grad_norms = _take_steps(forward, steps, work, selection, references, log)
    seconds = time.perf_counter() - started
    records = _records(work, selection, log)
    return _metrics(work, selection, steps, statistics, grad_norms, seconds, forward.attention, records)


@dataclass(frozen=True)
class _Selection:
    """The sequences that are trained, and their roles."""

    kept: list[TrainingSequence]
    roles: tuple[str, ...]
    reasons: list[NotTrained | None]
    """Why each sequence of the work is left out; None for those that are trained."""
    live_share: float
    """Share of the trainable sequences that have an advantage, by tokens or by number, as the loss is
    normalised."""


def _select(work: Reinforcement) -> _Selection:
    """Leave out sequences without a loss; multiply the others' weights by those of their roles."""
    terms = {role: work.objective.terms(role) for role in {sequence.role for sequence in work.sequences}}
    reasons = [_reason(sequence, terms[sequence.role]) for sequence in work.sequences]
    kept = [sequence for sequence, reason in zip(work.sequences, reasons, strict=True) if reason is None]
    for sequence in kept:
        if not sequence.behaviour_logprobs and sequence.role not in UNSAMPLED:
            raise ValueError(f"trajectory {sequence.trajectory_id} has no log-probabilities of its sampler")
    possible = [
        sequence
        for sequence, reason in zip(work.sequences, reasons, strict=True)
        if reason in (None, "zero_advantage")
    ]
    return _Selection(
        kept=[_weighted(sequence, terms[sequence.role].weight) for sequence in kept],
        roles=tuple(sorted({sequence.role for sequence in kept})),
        reasons=reasons,
        live_share=_live_share(possible, work),
    )


def _reason(sequence: TrainingSequence, terms: RoleTerms) -> NotTrained | None:
    if not sequence.trained_tokens:
        return "no_tokens"
    if terms.weight == 0.0 or sequence.weight == 0.0:
        return "zero_weight"
    has_loss = sequence.has_advantage or terms.regularized or sequence.teacher is not None
    return None if has_loss else "zero_advantage"


def _live_share(sequences: Sequence[TrainingSequence], work: Reinforcement) -> float:
    by_token = work.objective.loss_normalization == "token_mean"
    sizes = [sequence.trained_tokens if by_token else 1 for sequence in sequences]
    penalized = _penalized_roles(sequences, work)
    live = [
        size
        for size, sequence in zip(sizes, sequences, strict=True)
        if sequence.has_advantage or sequence.role in penalized
    ]
    return sum(live) / sum(sizes) if sizes else 1.0


def _penalized_roles(sequences: Sequence[TrainingSequence], work: Reinforcement) -> set[str]:
    """Roles of sequences whose tokens get an advantage by KL in the reward: the policy has sampled them."""
    roles = {sequence.role for sequence in sequences} - UNSAMPLED - {REPLAYED}
    return {role for role in roles if work.objective.penalizes(role)}


def _weighted(sequence: TrainingSequence, weight: float) -> TrainingSequence:
    return sequence if weight == 1.0 else replace(sequence, weight=sequence.weight * weight)


def _reference_logprobs(
    learner: Learner,
    reference: PreTrainedModel,
    sequences: Sequence[TrainingSequence],
    update: UpdateConfig,
) -> list[torch.Tensor]:
    base = without_adapter(learner.model) if reference is learner.model else nullcontext()
    with base, learner.ready(gradient_checkpointing=False, model=reference) as forward:
        return forward.sequence_scores(sequences, update.microbatch_tokens)[0]


def _penalized(
    work: Reinforcement, sequences: Sequence[TrainingSequence], references: Sequence[torch.Tensor]
) -> list[TrainingSequence]:
    """The sequences with what KL in the reward adds to the advantages of their tokens. `references`: of each,
    `[trained]`."""
    penalized = _penalized_roles(sequences, work)

    def with_returns(sequence: TrainingSequence, reference: torch.Tensor) -> TrainingSequence:
        if sequence.role not in penalized:
            return sequence
        coefficient = work.objective.terms(sequence.role).kl_coefficient
        behaviour = torch.from_numpy(sequence.trained_behaviour_logprobs)
        returns = kl_returns(behaviour, reference.to(behaviour), coefficient)
        advantages = np.zeros(len(sequence.response_token_ids)) + (sequence.token_advantages or 0.0)
        advantages[sequence.trained_offsets] += returns.numpy()
        return replace(sequence, token_advantages=tuple(advantages.tolist()))

    return [with_returns(*pair) for pair in zip(sequences, references, strict=True)]


def _take_steps(
    forward: PolicyForward,
    steps: OptimizerSteps,
    work: Reinforcement,
    selection: _Selection,
    references: Sequence[torch.Tensor] | None,
    log: SequenceLog,
) -> tuple[Statistics, tuple[float, float] | None]:
    """Take all optimizer steps of the update; returns what was observed in them, and the norms of the
    gradients of reinforcement and of self-distillation in the first one, where they are asked for."""
    objective, update, kept, replay = work.objective, work.update, selection.kept, work.replay
    statistics = Statistics()
    olds = grad_norms = None
    if _needs_old_logprobs(objective, update):
        olds = forward.sequence_scores(kept, update.microbatch_tokens)[0]
    for members in _minibatches(kept, update, work.seed):
        batch = [kept[index] for index in members]
        policy_share = selection.live_share if objective.normalizer == "all_rows" else 1.0
        columns = token_columns(
            batch, objective.loss_normalization, forward.device, policy_share, objective.loss_length or 1
        )
        roles = role_columns(batch, objective, selection.roles, forward.device)
        if replay is not None and not replay.clip:
            roles = without_clip(roles)
        old = None if olds is None else torch.cat([olds[index] for index in members])
        seen = BatchLog(len(columns.sequence), forward.device)
        loss = PolicyLoss(
            objective,
            columns,
            roles,
            old_logprobs=old,
            reference_logprobs=None
            if references is None
            else torch.cat([references[index] for index in members]),
            statistics=statistics,
            measure_mismatch=not steps.losses,
            log=seen,
            replayed=None if replay is None else ReplayedPart(replay, columns, roles),
            log_ratios=_sequence_log_ratios(forward, work, batch, columns, old, first=not steps.losses),
            taught=None
            if work.distillation is None
            else TaughtPart(work.distillation, batch, objective, forward.device),
        )
        if work.distillation is not None and work.distillation.grad_norms and not steps.losses:
            apart = (loss.alone("reinforcement"), loss.alone("distillation"))
            first, second = (steps.grad_norm(batch, columns.temperatures, each) for each in apart)
            grad_norms = first, second
        steps.take(batch, columns.temperatures, loss)
        seen.add_up(forward.ranks)
        log.take(members, seen)
    return statistics.over(forward.ranks), grad_norms


def _sequence_log_ratios(
    forward: PolicyForward,
    work: Reinforcement,
    batch: Sequence[TrainingSequence],
    columns: TokenColumns,
    old: torch.Tensor | None,
    first: bool,
) -> torch.Tensor | None:
    """Log-ratios of whole sequences before a step, `[trained]`; None where the objective has those of tokens.

    They must be known before the first microbatch's backward pass, so they take a pass of their own. `first`:
    whether no step was taken, so that the policy is still the one of `old`.
    """
    if work.objective.ratio == "token":
        return None
    if first and isinstance(work.objective.correction, DecoupledCorrection):
        return torch.zeros_like(columns.temperatures)
    now = forward.logprobs(batch, columns.temperatures, work.update.microbatch_tokens)
    before = columns.behaviour_logprobs if old is None else old
    unsampled = torch.tensor([each.role in UNSAMPLED for each in batch], device=now.device)
    return sequence_log_ratios(now, now.where(unsampled[columns.sequence], before), columns.sequence)


def _records(work: Reinforcement, selection: _Selection, log: SequenceLog) -> list[SequenceRecord]:
    """What was done with each sequence of the work, in its order."""
    numbers = count()
    weights = [each.weight * work.objective.terms(each.role).weight for each in work.sequences]
    return [
        log.record(next(numbers), weight) if reason is None else SequenceRecord(weight, reason)
        for weight, reason in zip(weights, selection.reasons, strict=True)
    ]


def _metrics(
    work: Reinforcement,
    selection: _Selection,
    steps: OptimizerSteps,
    statistics: Statistics,
    grad_norms: tuple[float, float] | None,
    seconds: float,
    attention: PackedAttention,
    records: list[SequenceRecord],
) -> UpdateMetrics:
    kept, epochs, dropped = selection.kept, work.update.epochs, Counter(selection.reasons)
    sequence_tokens = epochs * count_tokens(kept)
    return UpdateMetrics(
        policy_loss=mean(steps.losses),
        kl_loss=statistics.mean("kl"),
        entropy=statistics.mean("entropy"),
        grad_norm=mean(steps.grad_norms),
        ratio_mean=statistics.mean("ratio"),
        clip_fraction=statistics.mean("clipped"),
        mismatch_mean=statistics.mean("mismatch"),
        mismatch_max=statistics.maximum("mismatch"),
        mismatch_kl=statistics.mean("mismatch_kl"),
        importance_mean=statistics.mean("importance"),
        importance_capped=statistics.mean("importance_capped"),
        seconds=seconds,
        tokens_per_second=sequence_tokens / seconds,
        optimizer_steps=len(steps.losses),
        microbatches=steps.passes.microbatches,
        sequences=len(kept),
        dropped_zero_advantage=dropped["zero_advantage"],
        dropped_untrained=dropped["no_tokens"],
        dropped_zero_weight=dropped["zero_weight"],
        trained_tokens=epochs * sum(sequence.trained_tokens for sequence in kept),
        sequence_tokens=sequence_tokens,
        input_tokens=steps.passes.input_tokens,
        shares_prompts=int(attention != "rows"),
        attention=attention,
        roles={
            role: RoleMetrics(
                entropy=statistics.group_mean("entropy", number),
                clip_fraction=statistics.group_mean("clipped", number),
            )
            for number, role in enumerate(selection.roles)
        },
        records=records,
        replay=None
        if work.replay is None
        else replay_metrics(statistics, sum(row.role == work.replay.role for row in kept), len(steps.losses)),
        distillation=None
        if work.distillation is None
        else distillation_metrics(statistics, kept, len(steps.losses), grad_norms),
    )


def _needs_old_logprobs(objective: ObjectiveConfig, update: UpdateConfig) -> bool:
    """Whether the log-probabilities before the first step need a forward pass of their own.

    An update of one step gets them from the pass that it makes anyway, token by token. That is too late where
    a weight belongs to a whole sequence.
    """
    correction = objective.correction
    return isinstance(correction, DecoupledCorrection) and (
        update.optimizer_steps > 1 or correction.level == "sequence"
    )


def _minibatches(
    sequences: Sequence[TrainingSequence], update: UpdateConfig, seed: int
) -> Iterator[list[int]]:
    """Indices of the sequences of each optimizer step; sequences with one prompt stay together."""
    prompts = list(by_prompt(sequences).values())
    parts = min(update.minibatches, len(prompts))
    shuffler = random.Random(seed)
    for _ in range(update.epochs):
        if parts > 1:
            shuffler.shuffle(prompts)
        for part in range(parts):
            share = prompts[part * len(prompts) // parts : (part + 1) * len(prompts) // parts]
            yield sorted(index for members in share for index in members)
