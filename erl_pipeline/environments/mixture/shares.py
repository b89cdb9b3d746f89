"""How often each part's turn comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def turns(weights: Mapping[str, float], count: int) -> list[str]:
    """The parts for `count` places in a row, in proportion to their weights at every length of the row.

    The next place goes to the part whose next turn comes first, where the k-th turn (from 0) of a part of
    weight w comes at (k + 1/2) / w (Webster's method); among equals it goes to the first part. A smaller
    `count` gives the beginning of the same list.
    """
    taken: Counter[str] = Counter()
    row = []
    for _ in range(count):
        name = min(weights, key=lambda each: (taken[each] + 0.5) / weights[each])
        taken[name] += 1
        row.append(name)
    return row
