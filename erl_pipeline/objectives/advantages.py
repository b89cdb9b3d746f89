"""Advantages: how much better a trajectory was than the others of its group."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

EPSILON = 1e-6
"""Added to the standard deviation, so that nearly equal rewards do not blow up."""


def group_advantages(
    rewards: Sequence[float], group_keys: Sequence[Hashable], normalization: Literal["std", "mean"]
) -> list[float]:
    """Advantage of each trajectory within its group.

    `std`: `(r - mean) / (std + EPSILON)` with the unbiased standard deviation (GRPO, arXiv 2402.03300,
    section 4.1.2). `mean`: `r - mean` (Dr. GRPO, arXiv 2503.20783). A group of one, or of equal rewards,
    tells nothing: its advantages are exactly 0.
    """
    advantages = [0.0] * len(rewards)
    for members in _groups(rewards, group_keys):
        mean = math.fsum(rewards[i] for i in members) / len(members)
        scale = 1.0
        if normalization == "std":
            variance = math.fsum((rewards[i] - mean) ** 2 for i in members) / (len(members) - 1)
            scale = math.sqrt(variance) + EPSILON
        for i in members:
            advantages[i] = (rewards[i] - mean) / scale
    return advantages


@dataclass(frozen=True)
class GroupCount:
    """How many groups there are, and how many of them tell nothing: those of one, or of equal rewards."""

    groups: int
    without_advantage: int


def count_groups(rewards: Sequence[float], group_keys: Sequence[Hashable]) -> GroupCount:
    """Count the groups that `group_advantages` compares."""
    groups = len(set(group_keys))
    return GroupCount(groups, groups - len(_groups(rewards, group_keys)))


def _groups(rewards: Sequence[float], group_keys: Sequence[Hashable]) -> list[list[int]]:
    """The members of each group in which rewards differ."""
    members: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index, (_, key) in enumerate(zip(rewards, group_keys, strict=True)):
        members[key].append(index)
    return [group for group in members.values() if len({rewards[i] for i in group}) > 1]
