"""The loss of one optimizer batch of the reinforcement-learning update."""

from __future__ import annotations

import torch

from erl_pipeline.config.objective import DecoupledCorrection, ObjectiveConfig
from erl_pipeline.objectives.importance import ImportanceWeights, importance_weights
from erl_pipeline.objectives.policy_gradient import cispo_surrogate, clipped_surrogate, kl_estimate
from erl_pipeline.trainers.local.packing import Microbatch
from erl_pipeline.trainers.local.statistics import Statistics
from erl_pipeline.trainers.local.token_columns import RoleColumns, TokenColumns
from erl_pipeline.trainers.local.token_logprobs import TokenLoss


class PolicyLoss:
    """Surrogate, KL and entropy of a batch that arrives in microbatches; adds up the parts of its loss.

    Clip range and coefficients are those of each token's role, in `roles`; all else is in `objective`.

    Args:
        old_logprobs: `[trained]`, what the ratio is taken against under `decoupled`; None under `bypass`,
            and in an update of one step, where they are those of the pass itself.
        reference_logprobs: `[trained]`, for the KL term.
        statistics: observes ratio, clipping, weights and entropy, and the mismatch of trainer and
            sampler where `measure_mismatch`.
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
    ) -> None:
        self._objective = objective
        self._columns = columns
        self._roles = roles
        self._old_logprobs = old_logprobs
        self._reference_logprobs = reference_logprobs
        self._statistics = statistics
        self._measure_mismatch = measure_mismatch
        self._parts: dict[str, torch.Tensor] = {}
        self._batch_weights: ImportanceWeights | None = None
        if old_logprobs is not None:
            self._batch_weights = self._weigh(old_logprobs, columns.behaviour_logprobs, columns.sequence)

    def parts(self) -> dict[str, float]:
        """The parts of the loss over all microbatches so far."""
        return {name: float(part) for name, part in self._parts.items()}

    def of(self, microbatch: Microbatch) -> TokenLoss:
        """The loss function of one microbatch."""

        def loss(logprobs: torch.Tensor, entropies: torch.Tensor, place: slice) -> torch.Tensor:
            return self._loss(logprobs, entropies, microbatch.tokens[place])

        return loss

    def _loss(self, logprobs: torch.Tensor, entropies: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """`logprobs`, `entropies` and `tokens` (numbers of the tokens in the columns): `[chunk]`."""
        columns, roles = self._columns, self._roles
        regularizer_weights = columns.regularizer_weights[tokens]
        self._observe("entropy", entropies, tokens)
        if self._measure_mismatch:
            self._observe_mismatch(logprobs.detach(), columns.behaviour_logprobs[tokens])

        total = self._add("policy_loss", self._surrogate(logprobs, tokens) * columns.policy_weights[tokens])
        if self._reference_logprobs is not None:
            divergence = kl_estimate(logprobs, self._reference_logprobs[tokens], self._objective.kl_estimator)
            self._statistics.observe("kl", divergence)
            penalty = roles.kl_coefficients[tokens] * divergence * regularizer_weights
            total = total + self._add("kl_loss", penalty)
        if roles.has_entropy:
            bonus = roles.entropy_coefficients[tokens] * entropies * regularizer_weights
            total = total + self._add("entropy_loss", -bonus)
        return total

    def _surrogate(self, logprobs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Clipped surrogate of each token of a chunk, times its importance weight under `decoupled`."""
        roles, behaviour = self._roles, self._columns.behaviour_logprobs[tokens]
        olds, importance = behaviour, None
        if isinstance(self._objective.correction, DecoupledCorrection):
            olds = logprobs.detach() if self._old_logprobs is None else self._old_logprobs[tokens]
            importance = self._importance(olds, tokens)
        advantages = self._columns.advantages[tokens]
        lowest, highest = roles.lowest_ratio[tokens], roles.highest_ratio[tokens]
        if self._objective.surrogate == "cispo":
            surrogate = cispo_surrogate(
                logprobs, olds, advantages, lowest_ratio=lowest, highest_ratio=highest
            )
        else:
            surrogate = clipped_surrogate(
                logprobs,
                olds,
                advantages,
                lowest_ratio=lowest,
                highest_ratio=highest,
                dual_clip=None if roles.dual_clip is None else roles.dual_clip[tokens],
            )
        self._statistics.observe("ratio", surrogate.ratio)
        self._observe("clipped", surrogate.clipped, tokens)
        return surrogate.loss if importance is None else surrogate.loss * importance

    def _importance(self, olds: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        if self._batch_weights is None:
            # Then the level is "token", and a chunk's weights depend on no other chunk.
            weights = self._weigh(
                olds, self._columns.behaviour_logprobs[tokens], self._columns.sequence[tokens]
            )
        else:
            weights = ImportanceWeights(
                self._batch_weights.weights[tokens], self._batch_weights.capped[tokens]
            )
        self._statistics.observe("importance", weights.weights)
        self._statistics.observe("importance_capped", weights.capped)
        return weights.weights

    def _weigh(
        self, olds: torch.Tensor, behaviour: torch.Tensor, sequence: torch.Tensor
    ) -> ImportanceWeights:
        correction = self._objective.correction
        assert isinstance(correction, DecoupledCorrection)
        return importance_weights(
            olds, behaviour, sequence, level=correction.level, mode=correction.mode, cap=correction.cap
        )

    def _observe(self, name: str, values: torch.Tensor, tokens: torch.Tensor) -> None:
        """Over all tokens, and by role."""
        self._statistics.observe(name, values)
        self._statistics.observe_groups(name, values, self._roles.role[tokens], len(self._roles.roles))

    def _observe_mismatch(self, logprobs: torch.Tensor, behaviour: torch.Tensor) -> None:
        self._statistics.observe("mismatch", (logprobs - behaviour).abs())
        self._statistics.observe("mismatch_kl", kl_estimate(behaviour, logprobs, "k3"))

    def _add(self, part: str, losses: torch.Tensor) -> torch.Tensor:
        """Sum of weighted token losses, added to the part's total."""
        share = losses.sum()
        self._parts[part] = self._parts.get(part, torch.zeros_like(share)) + share.detach()
        return share
