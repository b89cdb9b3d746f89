"""Learning curves as numbers: area under a curve, value at a budget."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np


def value_at(x: Sequence[float], y: Sequence[float], at: float) -> float:
    """The curve at `at`, linear between its points. Raises ValueError outside them: no extrapolation."""
    _check_curve(x, y)
    if not x[0] <= at <= x[-1]:
        raise ValueError(f"the curve runs from {x[0]:g} to {x[-1]:g} and says nothing about {at:g}")
    return float(np.interp(at, x, y))


def area_under_curve(x: Sequence[float], y: Sequence[float], up_to: float | None = None) -> float:
    """Mean height of the curve from its first point to `up_to` (default: its last), by trapezoids.

    `x` is what is spent, such as iterations or generated tokens. Dividing by the width keeps the scale of
    `y`, so that a policy of constant success 0.4 has an area of 0.4 for any budget. Raises ValueError when
    the curve ends before `up_to`, or has no width.
    """
    end = x[-1] if up_to is None else up_to
    last = value_at(x, y, end)
    width = end - x[0]
    if width <= 0:
        raise ValueError(f"no area under a curve of width {width:g}; it needs two points")
    inside = [index for index, position in enumerate(x) if position < end]
    xs = [x[index] for index in inside] + [end]
    ys = [y[index] for index in inside] + [last]
    return float(np.trapezoid(ys, xs)) / width


def _check_curve(x: Sequence[float], y: Sequence[float]) -> None:
    if len(x) != len(y) or not x:
        raise ValueError(f"a curve needs as many positions as values, got {len(x)} and {len(y)}")
    if any(later <= earlier for earlier, later in pairwise(x)):
        raise ValueError(f"positions of a curve must rise, got {list(x)}")
