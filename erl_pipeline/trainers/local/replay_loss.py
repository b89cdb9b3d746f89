"""The policy loss of replayed trajectories in an optimizer batch."""

from __future__ import annotations

from dataclasses import replace

import torch

from erl_pipeline.config.replay import ReplayLoss
from erl_pipeline.objectives.policy_gradient import replay_surrogate
from erl_pipeline.trainers.local.statistics import Statistics
from erl_pipeline.trainers.local.token_columns import RoleColumns, TokenColumns
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
        surrogate = replay_surrogate(
            logprobs,
            stored,
            self._columns.advantages[tokens],
            shaping_beta=self._settings.shaping_beta,
            weight_cap=self._settings.weight_cap,
        )
        losses = torch.where(replayed, surrogate.loss, fresh_losses)
        in_step = losses * self._columns.policy_weights[tokens]
        for name, values in (
            (_RATIO, surrogate.ratio[replayed]),
            (_WEIGHT, surrogate.weight[replayed]),
            (_REPLAYED, in_step[replayed]),
            (_FRESH, in_step[~replayed]),
        ):
            if len(values):
                statistics.observe(name, values)
        statistics.keep(_RATIO, surrogate.ratio[replayed])
        statistics.keep(_WEIGHT, surrogate.weight[replayed])
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
