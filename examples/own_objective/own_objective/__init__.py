"""An advantage and a loss of one's own, which a configuration names in `objective`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from erl_pipeline.objectives.advantages import EPSILON
from erl_pipeline.objectives.policy_gradient import Surrogate, bounded

if TYPE_CHECKING:
    import torch

    from storage.tables.trajectories import Trajectory

POSITIVE, NEGATIVE = 1.0, 1.05
"""Temperatures of the gate for positive and for negative advantages."""


def leave_one_out(group: Sequence[Trajectory]) -> list[float]:
    """Rewards, each less the mean of the group's others (RLOO, arXiv 2402.14740); 0 in a group of one, or of
    equal rewards."""
    rewards = [row.reward for row in group]
    # Equal rewards may differ in their last bits, and advantages that are not quite 0 would be trained.
    if max(rewards) - min(rewards) <= EPSILON * max(1.0, *map(abs, rewards)):
        return [0.0] * len(rewards)
    total = math.fsum(rewards)
    return [reward - (total - reward) / (len(rewards) - 1) for reward in rewards]


def sapo(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    lowest_ratio: torch.Tensor,
    highest_ratio: torch.Tensor,
    dual_clip: torch.Tensor | None = None,
) -> Surrogate:
    """`-4 / t sigmoid(t (r - 1)) A` with `r = exp(logprobs - old_logprobs)` (SAPO, arXiv 2511.20347).

    A token's gradient fades as its ratio leaves 1, instead of ending at the clip range. That range only says
    which tokens count as clipped. All tensors: `[tokens]`.
    """
    ratio = bounded(logprobs - old_logprobs).exp()
    temperature = (advantages > 0) * POSITIVE + (advantages <= 0) * NEGATIVE
    gate = (temperature * (ratio - 1)).sigmoid() * 4 / temperature
    outside = (ratio < lowest_ratio) | (ratio > highest_ratio)
    return Surrogate(loss=-gate * advantages, ratio=ratio.detach(), clipped=outside)
