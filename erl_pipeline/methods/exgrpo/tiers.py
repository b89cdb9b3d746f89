"""The sampler `tiers`: attempts ranked by quality within their group, drawn by the shares of four tiers.

It is a simplified variant of experience replay that is in no paper; see `TierSettings`.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

from erl_pipeline.methods.exgrpo.settings import TierSettings

TIERS = 4


def qualities(
    successes: Sequence[bool], responses: Sequence[Sequence[int]], settings: TierSettings
) -> list[float]:
    """Quality of each attempt of a group, in [0, 1]: the weighted sum of its success and its difference from
    the others.

    Args:
        responses: token ids; the vector of an attempt counts how often each token occurs.
    """
    vectors = [Counter(response) for response in responses]
    return [
        quality(success, mean_cosine(vectors, index), settings.success_weight)
        for index, success in enumerate(successes)
    ]


def quality(success: bool, cosine: float, success_weight: float) -> float:
    """`success_weight * success + (1 - success_weight) * (1 - cosine)`."""
    return success_weight * success + (1.0 - success_weight) * (1.0 - cosine)


def mean_cosine(vectors: Sequence[Counter[int]], index: int) -> float:
    """Mean cosine similarity of one vector to the others; 0 where it is alone."""
    others = [vector for place, vector in enumerate(vectors) if place != index]
    if not others:
        return 0.0
    return math.fsum(_cosine(vectors[index], other) for other in others) / len(others)


def tiers_of(ranked: Sequence[float]) -> list[int]:
    """The tier of each attempt of a group by its quality: 0 is the best quarter, 3 the worst. Of equal
    attempts the first ranks higher."""
    order = sorted(range(len(ranked)), key=lambda index: -ranked[index])
    tiers = [0] * len(ranked)
    for rank, index in enumerate(order):
        tiers[index] = rank * TIERS // len(ranked)
    return tiers


def whole_shares(count: int, shares: Sequence[float]) -> list[int]:
    """Whole numbers that add up to `count`: each share rounded down, and one more for the largest remainders;
    of equal ones the first."""
    exact = [count * share for share in shares]
    whole = [math.floor(each + 1e-9) for each in exact]
    remainders = [round(each - floor, 9) for each, floor in zip(exact, whole, strict=True)]
    order = sorted(range(len(shares)), key=lambda index: (-remainders[index], index))
    for index in order[: count - sum(whole)]:
        whole[index] += 1
    return whole


def draw_from_tiers(
    tiers: Sequence[Sequence[tuple[str, str]]], count: int, shares: Sequence[float], chance: random.Random
) -> list[tuple[str, str]]:
    """`count` attempts of different tasks, or fewer where there are no more tasks. What a tier lacks is drawn
    from the best tiers that have tasks left.

    Args:
        tiers: for each tier, the task id and trajectory id of each attempt.
    """
    shuffled = [chance.sample(list(tier), len(tier)) for tier in tiers]
    taken: dict[str, tuple[str, str]] = {}

    def draw(tier: Sequence[tuple[str, str]], wanted: int) -> None:
        for attempt in tier:
            if wanted == 0:
                return
            if attempt[0] not in taken:
                taken[attempt[0]] = attempt
                wanted -= 1

    for tier, wanted in zip(shuffled, whole_shares(count, shares), strict=True):
        draw(tier, wanted)
    for tier in shuffled:
        draw(tier, count - len(taken))
    return list(taken.values())


def on_policy_weight(epoch: int, settings: TierSettings) -> float:
    """Weight of fresh rows in a pass over the training tasks, counted from 0."""
    return max(settings.on_policy_least, settings.on_policy_start - settings.on_policy_decay * epoch)


def _cosine(one: Counter[int], other: Counter[int]) -> float:
    lengths = math.hypot(*one.values()) * math.hypot(*other.values())
    return sum(count * other[token] for token, count in one.items()) / lengths if lengths else 0.0
