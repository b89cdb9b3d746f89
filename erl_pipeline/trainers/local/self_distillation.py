"""Self-distillation in this process: what a policy says of tokens, and the loss that brings the policy near
to what its teacher said."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from transformers import PreTrainedModel

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.config.self_distillation import DistillationObjective
from erl_pipeline.objectives.policy_gradient import bounded, token_weights
from erl_pipeline.objectives.self_distillation import divergence, sampled_token_loss
from erl_pipeline.policies.adapters import without_adapter
from erl_pipeline.trainers.local.block_attention import moved
from erl_pipeline.trainers.local.observations import Statistics
from erl_pipeline.trainers.local.optimizer_steps import Learner
from erl_pipeline.trainers.local.tokens import SupportLogprobs
from erl_pipeline.trainers.metrics import DistillationMetrics
from erl_pipeline.trainers.sequences import TokenScores, TrainingSequence

_LOSS, _GAP, _CAPPED, _CLIPPED = "distillation", "teacher_gap", "distillation_capped", "distillation_clipped"
_STUDENT_TAIL, _TEACHER_TAIL = "student_tail", "teacher_tail"


def token_scores(
    learner: Learner,
    model: PreTrainedModel,
    sequences: Sequence[TrainingSequence],
    microbatch_tokens: int,
    top_k: int,
    own_base: bool,
) -> list[TokenScores]:
    """`Trainer.token_scores` of a model: that of the learner, perhaps without its adapter, or another."""
    base = without_adapter(model) if own_base else nullcontext()
    with base, learner.ready(gradient_checkpointing=False, model=model) as forward:
        return forward.token_scores(sequences, microbatch_tokens, top_k)


class TaughtPart:
    """The loss of the tokens of a batch that a teacher has scored, whatever their advantage.

    Args:
        batch: the sequences of an optimizer batch, in the order of its columns.
        objective: says how losses of tokens become one number; only taught tokens count in it.
    """

    def __init__(
        self,
        settings: DistillationObjective,
        batch: Sequence[TrainingSequence],
        objective: ObjectiveConfig,
        device: torch.device,
    ) -> None:
        self._settings = settings
        taught = [each for each in batch if self._tokens(each) > 0]
        lengths = [self._tokens(each) for each in taught]
        normalization, length = objective.loss_normalization, objective.loss_length or 1
        shares = token_weights(lengths, normalization, length) if taught else []
        weights = dict(zip(map(id, taught), shares, strict=True))
        skipped = settings.skip_tokens

        def column(of: Callable[[TokenScores], np.ndarray], *shape: int) -> torch.Tensor:
            """`[trained, ...]`, zeros where nothing was scored."""
            parts = [
                np.zeros((each.trained_tokens, *shape), np.float32)
                if each.teacher is None
                else of(each.teacher)
                for each in batch
            ]
            return moved(np.concatenate(parts), device)

        self._weights = moved(
            np.concatenate(
                [
                    np.float32(settings.coefficient * weights.get(id(each), 0.0) * each.weight)
                    * (np.arange(each.trained_tokens) >= skipped)
                    for each in batch
                ]
            ).astype(np.float32),
            device,
        )
        self._teacher = column(lambda scores: scores.logprobs)
        self._ids: torch.Tensor | None = None
        if settings.estimator == "sampled" or not taught:
            return
        (chosen,) = {each.teacher.ids.shape[1] for each in taught if each.teacher is not None}
        self._ids = column(lambda scores: scores.ids, chosen).long()
        self._id_logprobs = column(lambda scores: scores.id_logprobs, chosen)
        self._tail = column(lambda scores: scores.tail_logprobs)
        # With the whole vocabulary there are no other tokens.
        self._has_tail = not any(
            np.isneginf(each.teacher.tail_logprobs).any() for each in taught if each.teacher is not None
        )

    def _tokens(self, sequence: TrainingSequence) -> int:
        """How many tokens of a sequence have this loss."""
        return 0 if sequence.teacher is None else max(0, sequence.trained_tokens - self._settings.skip_tokens)

    @property
    def ids(self) -> torch.Tensor | None:
        """The tokens that are compared at each place, `[trained, chosen]`, int64; None where only the sampled
        one is."""
        return self._ids

    def losses(
        self,
        logprobs: torch.Tensor,
        behaviour_logprobs: torch.Tensor,
        support: SupportLogprobs | None,
        tokens: torch.Tensor,
        statistics: Statistics,
    ) -> torch.Tensor:
        """The weighted loss of each token of a chunk; 0 where nothing was scored.

        `logprobs`, `behaviour_logprobs`, `tokens` (indices into the columns): `[chunk]`; `support`: the
        policy's log-probabilities of `ids`, and of all others.
        """
        settings, weights, teacher = self._settings, self._weights[tokens], self._teacher[tokens]
        taught = weights != 0
        if support is None:
            losses = sampled_token_loss(logprobs, teacher)
        else:
            losses = self._divergences(support, tokens, statistics, taught)
        statistics.observe(_GAP, teacher - logprobs, taught)
        if settings.ratio_cap is not None:
            ratio = bounded(logprobs.detach() - behaviour_logprobs).exp()
            losses = losses * ratio.clamp(max=settings.ratio_cap)
            statistics.observe(_CAPPED, ratio > settings.ratio_cap, taught)
        weighted = losses.masked_fill(~taught, 0.0) * weights
        statistics.observe(_LOSS, weighted, taught)
        return weighted

    def _divergences(
        self, support: SupportLogprobs, tokens: torch.Tensor, statistics: Statistics, taught: torch.Tensor
    ) -> torch.Tensor:
        settings = self._settings
        student, student_tail = support
        teacher = self._id_logprobs[tokens]
        if self._has_tail:
            statistics.observe(_STUDENT_TAIL, student_tail.exp(), taught)
            statistics.observe(_TEACHER_TAIL, self._tail[tokens].exp(), taught)
            if settings.tail:
                student = torch.cat([student, student_tail[:, None]], dim=1)
                teacher = torch.cat([teacher, self._tail[tokens][:, None]], dim=1)
        found = divergence(student, teacher, settings.divergence, settings.beta)
        if settings.token_clip is None:
            return found
        statistics.observe(_CLIPPED, found > settings.token_clip, taught)
        return found.clamp(max=settings.token_clip)


def distillation_metrics(
    statistics: Statistics,
    sequences: Sequence[TrainingSequence],
    steps: int,
    grad_norms: tuple[float, float] | None = None,
) -> DistillationMetrics:
    """What was observed of taught tokens over all steps of an update. `grad_norms`: of the other parts of the
    loss, and of this one, where they were measured."""
    others, own = grad_norms or (None, None)
    return DistillationMetrics(
        taught_sequences=sum(each.teacher is not None for each in sequences),
        distillation_loss=statistics.total(_LOSS) / max(steps, 1),
        teacher_gap=statistics.mean(_GAP),
        distillation_capped=statistics.mean(_CAPPED),
        distillation_clipped=statistics.mean(_CLIPPED),
        student_tail=statistics.mean(_STUDENT_TAIL),
        teacher_tail=statistics.mean(_TEACHER_TAIL),
        reinforcement_grad_norm=others,
        distillation_grad_norm=own,
    )
