"""The loss of one optimizer batch of the reinforcement-learning update."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Literal

import torch

from erl_pipeline.config.objective import UNSAMPLED, DecoupledCorrection, ObjectiveConfig, ReplayLoss
from erl_pipeline.objectives import policy_gradient
from erl_pipeline.trainers.local.observations import BatchLog, Statistics
from erl_pipeline.trainers.local.packing import Microbatch
from erl_pipeline.trainers.local.self_distillation import TaughtPart
from erl_pipeline.trainers.local.tokens import (
    RoleColumns,
    SupportedTokenLoss,
    SupportLogprobs,
    TokenColumns,
    TokenLoss,
)
from erl_pipeline.trainers.metrics import ReplayMetrics

_RATIO, _WEIGHT, _REPLAYED, _FRESH = "replay_ratio", "replay_weight", "replay_loss", "fresh_loss"


class ReplayedPart:
    """Tells replayed tokens of a batch from fresh ones, by their role, and gives them their own loss."""

    def __init__(self, settings: ReplayLoss, columns: TokenColumns, roles: RoleColumns) -> None:
        self._settings = settings
        self._columns = columns
        role = roles.roles.index(settings.role) if settings.role in roles.roles else -1
        self._replayed = roles.role == role

    def fresh(self, tokens: torch.Tensor) -> torch.Tensor:
        """Which of a chunk's tokens are not replayed. Both tensors: `[chunk]`."""
        return ~self._replayed[tokens]

    def losses(
        self, logprobs: torch.Tensor, tokens: torch.Tensor, fresh_losses: torch.Tensor, statistics: Statistics
    ) -> torch.Tensor:
        """The loss of each token of a chunk: replayed ones have their own, in place of the fresh one.

        All tensors: `[chunk]`; `statistics` observes ratios and weights of replayed tokens, and the parts of
        both kinds in the loss of the step.
        """
        replayed = self._replayed[tokens]
        stored = self._columns.behaviour_logprobs[tokens] if self._settings.corrected else logprobs.detach()
        surrogate = policy_gradient.replay_surrogate(
            logprobs,
            stored,
            self._columns.advantages[tokens],
            shaping_beta=self._settings.shaping_beta,
            weight_cap=self._settings.weight_cap,
        )
        losses = torch.where(replayed, surrogate.loss, fresh_losses)
        in_step = losses * self._columns.policy_weights[tokens]
        statistics.observe(_RATIO, surrogate.ratio, replayed)
        statistics.observe(_WEIGHT, surrogate.weight, replayed)
        statistics.observe(_REPLAYED, in_step, replayed)
        statistics.observe(_FRESH, in_step, ~replayed)
        statistics.keep(_RATIO, surrogate.ratio, replayed)
        statistics.keep(_WEIGHT, surrogate.weight, replayed)
        return losses


def without_clip(roles: RoleColumns) -> RoleColumns:
    """The same columns without bounds on the ratio."""
    return replace(
        roles,
        lowest_ratio=torch.zeros_like(roles.lowest_ratio),
        highest_ratio=torch.full_like(roles.highest_ratio, torch.inf),
        dual_clip=None,
    )


def replay_metrics(statistics: Statistics, sequences: int, steps: int) -> ReplayMetrics:
    """What was observed of replayed tokens over all steps of an update."""
    low, middle, high = statistics.quantiles(_RATIO, (0.1, 0.5, 0.9))
    weights = statistics.quantiles(_WEIGHT, (0.1, 0.5, 0.9))
    return ReplayMetrics(
        replayed_sequences=sequences,
        replay_loss=statistics.total(_REPLAYED) / max(steps, 1),
        fresh_loss=statistics.total(_FRESH) / max(steps, 1),
        replay_ratio_mean=statistics.mean(_RATIO),
        replay_ratio_p10=low,
        replay_ratio_p50=middle,
        replay_ratio_p90=high,
        replay_weight_mean=statistics.mean(_WEIGHT),
        replay_weight_p10=weights[0],
        replay_weight_p50=weights[1],
        replay_weight_p90=weights[2],
    )


class PolicyLoss:
    """Surrogate, KL and entropy of a batch that arrives in microbatches; adds up the parts of its loss.

    Clip range and coefficients are those of each token's role, in `roles`; all else is in `objective`.

    Args:
        old_logprobs: `[trained]`, the denominators of the ratio under `decoupled`; None under `bypass`, and
            in an update of one step, where the pass itself gives them.
        reference_logprobs: `[trained]`, for the KL term.
        statistics: observes clipping of all tokens; entropy and KL of those that such terms are about; ratio
            and importance weights, and with `measure_mismatch` the mismatch of trainer and sampler, of fresh
            tokens alone: neither replayed nor distilled.
        log_ratios: `[trained]`, those of whole sequences, of the policy as it is before the step; None where
            each token has its own.
        log: records log-probability, ratio, clipping, entropy, mismatch and loss of all tokens, token by
            token.
        replayed: tells replayed tokens from fresh ones; None where all are fresh.
        taught: the loss of tokens that a teacher has scored; None without one.
    """

    def __init__(
        self,
        objective: ObjectiveConfig,
        columns: TokenColumns,
        roles: RoleColumns,
        old_logprobs: torch.Tensor | None,
        reference_logprobs: torch.Tensor | None,
        statistics: Statistics,
        measure_mismatch: bool,
        log: BatchLog | None = None,
        replayed: ReplayedPart | None = None,
        log_ratios: torch.Tensor | None = None,
        taught: TaughtPart | None = None,
    ) -> None:
        self._objective = objective
        self._surrogate_of = policy_gradient.surrogate_named(objective.surrogate)
        self._columns = columns
        self._roles = roles
        self._old_logprobs = old_logprobs
        self._reference_logprobs = reference_logprobs
        self._statistics = statistics
        self._measure_mismatch = measure_mismatch
        self._log = BatchLog(len(columns.sequence), columns.sequence.device) if log is None else log
        self._replayed = replayed
        self._log_ratios = log_ratios
        self._taught = taught
        self._parts: dict[str, torch.Tensor] = {}
        self._unsampled: torch.Tensor | None = None
        unsampled = [number for number, role in enumerate(roles.roles) if role in UNSAMPLED]
        if unsampled:
            self._unsampled = torch.isin(roles.role, torch.tensor(unsampled, device=roles.role.device))
        self._batch_weights: policy_gradient.ImportanceWeights | None = None
        if old_logprobs is not None:
            behaviour = self._sampled(columns.behaviour_logprobs, old_logprobs)
            self._batch_weights = self._weigh(old_logprobs, behaviour, columns.sequence)

    def parts(self) -> dict[str, float]:
        """The parts of the loss over all microbatches so far."""
        return {name: float(part) for name, part in self._parts.items()}

    def alone(self, part: Literal["reinforcement", "distillation"]) -> PolicyLoss:
        """The same loss without self-distillation, or nothing but that. It observes nothing."""
        found, none = copy(self), torch.zeros_like(self._columns.policy_weights)
        found._statistics, found._log = Statistics(), BatchLog(len(none), none.device)
        found._measure_mismatch, found._parts = False, {}
        if part == "reinforcement":
            found._taught = None
            return found
        found._columns = replace(self._columns, policy_weights=none)
        found._roles = replace(self._roles, has_entropy=False)
        found._reference_logprobs = None
        return found

    def of(self, microbatch: Microbatch) -> TokenLoss:
        def loss(
            logprobs: torch.Tensor,
            entropies: torch.Tensor,
            place: slice,
            support: SupportLogprobs | None = None,
        ) -> torch.Tensor:
            return self._loss(logprobs, entropies, microbatch.tokens[place], support)

        ids = None if self._taught is None else self._taught.ids
        return loss if ids is None else SupportedTokenLoss(loss, ids[microbatch.tokens])

    def _loss(
        self,
        logprobs: torch.Tensor,
        entropies: torch.Tensor,
        tokens: torch.Tensor,
        support: SupportLogprobs | None,
    ) -> torch.Tensor:
        """The loss of a chunk. `logprobs`, `entropies` and `tokens` (indices into the columns): `[chunk]`;
        `support`: see `TaughtPart`."""
        columns, roles = self._columns, self._roles
        regularizer_weights = columns.regularizer_weights[tokens]
        self._log.add("entropy", entropies, tokens)
        self._observe_regularized("entropy", entropies, roles.entropy_coefficients, tokens)
        self._observe_roles("entropy", entropies, tokens)
        self._log.add("logprob", logprobs, tokens)
        behaviour = self._sampled(columns.behaviour_logprobs[tokens], logprobs.detach(), tokens)
        self._observe_mismatch(logprobs.detach(), behaviour, tokens)

        surrogate = self._surrogate(logprobs, behaviour, tokens) * columns.policy_weights[tokens]
        total = self._add("policy_loss", surrogate, tokens)
        if self._reference_logprobs is not None:
            divergence = policy_gradient.kl_estimate(
                logprobs, self._reference_logprobs[tokens], self._objective.kl_estimator
            )
            self._observe_regularized("kl", divergence, roles.kl_coefficients, tokens)
            if self._objective.kl_in == "loss":
                penalty = roles.kl_coefficients[tokens] * divergence * regularizer_weights
                total = total + self._add("kl_loss", penalty, tokens)
        if roles.has_entropy:
            bonus = roles.entropy_coefficients[tokens] * entropies * regularizer_weights
            total = total + self._add("entropy_loss", -bonus, tokens)
        if self._taught is not None:
            behaviour = columns.behaviour_logprobs[tokens]
            taught = self._taught.losses(logprobs, behaviour, support, tokens, self._statistics)
            total = total + self._add("distillation_loss", taught, tokens)
        return total

    def _sampled(
        self, behaviour: torch.Tensor, own: torch.Tensor, tokens: torch.Tensor | slice = slice(None)
    ) -> torch.Tensor:
        """The sampler's log-probabilities, and in place of those of tokens that no policy sampled, the
        trainer's `own`: their ratio is then 1, and the gradient of a token's loss that of `-A log p`. All
        tensors: `[chunk]`."""
        return behaviour if self._unsampled is None else own.where(self._unsampled[tokens], behaviour)

    def _surrogate(
        self, logprobs: torch.Tensor, behaviour: torch.Tensor, tokens: torch.Tensor
    ) -> torch.Tensor:
        """The surrogate of each token of a chunk, times its importance weight under `decoupled`."""
        roles = self._roles
        olds, importance = behaviour, None
        if isinstance(self._objective.correction, DecoupledCorrection):
            before = logprobs.detach() if self._old_logprobs is None else self._old_logprobs[tokens]
            importance = self._importance(before, behaviour, tokens)
            olds = self._sampled(before, logprobs.detach(), tokens)
        advantages = self._columns.advantages[tokens]
        news = logprobs
        if self._log_ratios is not None:
            # In value the sequence's ratio; the gradient is that of the token (GSPO, eq. 14).
            news = olds + self._log_ratios[tokens] + (logprobs - logprobs.detach())
        surrogate = self._surrogate_of(
            news,
            olds,
            advantages,
            lowest_ratio=roles.lowest_ratio[tokens],
            highest_ratio=roles.highest_ratio[tokens],
            dual_clip=None if roles.dual_clip is None else roles.dual_clip[tokens],
        )
        self._observe_fresh("ratio", surrogate.ratio, tokens)
        self._log.add("ratio", surrogate.ratio, tokens)
        # The loss of a replayed token knows no clip range.
        clipped = surrogate.clipped
        self._observe(
            "clipped", clipped if self._replayed is None else clipped & self._replayed.fresh(tokens), tokens
        )
        losses = surrogate.loss if importance is None else surrogate.loss * importance
        if self._replayed is None:
            return losses
        return self._replayed.losses(logprobs, tokens, losses, self._statistics)

    def _importance(self, olds: torch.Tensor, behaviour: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        if self._batch_weights is None:
            # The level is "token" here, so a chunk's weights depend on no other chunk.
            weights = self._weigh(olds, behaviour, self._columns.sequence[tokens])
        else:
            weights = policy_gradient.ImportanceWeights(
                self._batch_weights.weights[tokens], self._batch_weights.capped[tokens]
            )
        self._observe_fresh("importance", weights.weights, tokens)
        self._observe_fresh("importance_capped", weights.capped, tokens)
        return weights.weights

    def _weigh(
        self, olds: torch.Tensor, behaviour: torch.Tensor, sequence: torch.Tensor
    ) -> policy_gradient.ImportanceWeights:
        correction = self._objective.correction
        assert isinstance(correction, DecoupledCorrection)
        return policy_gradient.importance_weights(olds, behaviour, sequence, correction)

    def _observe(self, name: str, values: torch.Tensor, tokens: torch.Tensor) -> None:
        """Observe values of all tokens, by role and by sequence."""
        self._log.add(name, values, tokens)
        self._statistics.observe(name, values)
        self._observe_roles(name, values, tokens)

    def _observe_roles(self, name: str, values: torch.Tensor, tokens: torch.Tensor) -> None:
        self._statistics.observe_groups(name, values, self._roles.role[tokens], len(self._roles.roles))

    def _observe_regularized(
        self, name: str, values: torch.Tensor, coefficients: torch.Tensor, tokens: torch.Tensor
    ) -> None:
        """Observe what a KL or entropy term is about: sampled tokens, and those of a role that has the term
        by its own settings. `coefficients`: `[trained]`, those of the term."""
        chosen = None
        if self._unsampled is not None:
            chosen = ~self._unsampled[tokens] | (coefficients[tokens] > 0)
        self._statistics.observe(name, values, chosen)

    def _observe_fresh(self, name: str, values: torch.Tensor, tokens: torch.Tensor) -> None:
        """Observe values of all tokens but those that another policy has sampled, or nobody on their
        prompt."""
        fresh = None if self._replayed is None else self._replayed.fresh(tokens)
        if self._unsampled is not None:
            sampled = ~self._unsampled[tokens]
            fresh = sampled if fresh is None else fresh & sampled
        self._statistics.observe(name, values, fresh)

    def _observe_mismatch(
        self, logprobs: torch.Tensor, behaviour: torch.Tensor, tokens: torch.Tensor
    ) -> None:
        """Observe trainer against sampler before the first step: from this pass, where it is the first, or
        from log-probabilities that were computed before that step."""
        if self._measure_mismatch:
            self._observe_fresh("mismatch", (logprobs - behaviour).abs(), tokens)
            self._observe_fresh("mismatch_kl", policy_gradient.kl_estimate(behaviour, logprobs, "k3"), tokens)
        if self._old_logprobs is not None:
            olds = self._old_logprobs[tokens]
            self._log.add("mismatch", (olds - self._sampled(behaviour, olds, tokens)).abs(), tokens)
        elif self._measure_mismatch:
            self._log.add("mismatch", (logprobs - behaviour).abs(), tokens)

    def _add(self, part: str, losses: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Sum of weighted token losses, added to the part's total."""
        self._log.add("loss", losses, tokens)
        share = losses.sum()
        self._parts[part] = self._parts.get(part, torch.zeros_like(share)) + share.detach()
        return share
