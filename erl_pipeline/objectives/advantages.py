"""Advantages: how much better a trajectory was than the others of its group.

They are found by name, in the group `erl_pipeline.advantages`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Protocol

from erl_pipeline.config.plugins import plugins
from storage.errors import InputError

if TYPE_CHECKING:
    from storage.tables.trajectories import Trajectory

EPSILON = 1e-6
"""Added to the standard deviation, so that nearly equal rewards do not blow up. Rewards that differ by no
more, relatively where they are above 1, count as equal."""


class AdvantageFunction(Protocol):
    """Advantages from rewards. Any package can add one: a function that an entry point of
    `erl_pipeline.advantages` names."""

    def __call__(self, group: Sequence[Trajectory]) -> Sequence[float]:
        """The advantage of each trajectory of one group: of one task and one role, at least one.

        A trajectory with advantage 0 has no policy loss. Rewards are in `reward`; the other columns tell what
        else may count, such as the number of tokens.
        """


def std(group: Sequence[Trajectory]) -> list[float]:
    """`(r - mean) / (std + EPSILON)` with the unbiased standard deviation (GRPO, arXiv 2402.03300, section
    4.1.2); 0 for a group of one, or of equal rewards, which tells nothing."""
    centred = mean(group)
    if not any(centred):
        return centred
    variance = math.fsum(difference**2 for difference in centred) / (len(group) - 1)
    return [difference / (math.sqrt(variance) + EPSILON) for difference in centred]


def mean(group: Sequence[Trajectory]) -> list[float]:
    """`r - mean` (Dr. GRPO, arXiv 2503.20783); 0 for a group of one, or of equal rewards."""
    rewards = [row.reward for row in group]
    # Rewards are stored in 32 bits: sums of those of turns may differ where the rewards do not.
    if max(rewards) - min(rewards) <= EPSILON * max(1.0, *map(abs, rewards)):
        return [0.0] * len(rewards)
    middle = math.fsum(rewards) / len(rewards)
    return [reward - middle for reward in rewards]


def rloo(group: Sequence[Trajectory]) -> list[float]:
    """`r` minus the mean of the other rewards (RLOO, arXiv 2402.14740), which is `r - mean` times
    `n / (n - 1)`; 0 for a group of one, or of equal rewards."""
    centred = mean(group)
    return [difference * len(group) / (len(group) - 1) for difference in centred] if any(centred) else centred


def group_advantages(
    rows: Sequence[Trajectory], group_keys: Sequence[Hashable], function_name: str
) -> list[float]:
    """The advantage of each row within the rows that have the same key.

    Raises ConfigError for a function that is unknown or cannot be used, and InputError where it does not give
    one finite number for each row.
    """
    function: AdvantageFunction = plugins("advantages")[function_name].value
    members: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index, (_, key) in enumerate(zip(rows, group_keys, strict=True)):
        members[key].append(index)
    advantages = [0.0] * len(rows)
    for group in members.values():
        found = [float(each) for each in function([rows[i] for i in group])]
        if len(found) != len(group) or not all(map(math.isfinite, found)):
            raise InputError(
                f"objective.advantage_normalization: {function_name} gave {found} for the {len(group)} "
                f"trajectories of {rows[group[0]].group_id}; it must give one finite number for each"
            )
        for i, advantage in zip(group, found, strict=True):
            advantages[i] = advantage
    return advantages
