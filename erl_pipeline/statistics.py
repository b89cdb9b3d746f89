"""Rates, intervals and differences of evaluations on a fixed list of tasks.

The task is the sampling unit: attempts at one task resemble each other. Intervals of sampled attempts are
therefore widened, and two checkpoints are compared task by task. All intervals are 95 % intervals.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

Z_95 = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Estimate:
    """A rate in [0, 1] with the ends of its 95 % interval, from `attempts` attempts at `tasks` tasks."""

    value: float
    low: float
    high: float
    tasks: int
    attempts: int


@dataclass(frozen=True)
class PairedDifference:
    """Success of `after` minus success of `before` on the same tasks.

    `gained` tasks were solved only after, `lost` only before. `p_value` is that of the exact two-sided
    McNemar test: how often a fair coin would split the changed tasks at least as unevenly.
    """

    difference: float
    low: float
    high: float
    tasks: int
    gained: int
    lost: int
    p_value: float


@dataclass(frozen=True)
class MeanEstimate:
    """A mean of numbers from several tasks with the ends of its 95 % interval. One task says nothing about
    how tasks differ: `low` and `high` are then None."""

    value: float
    low: float | None
    high: float | None
    tasks: int
    count: int


def wilson_interval(rate: float, attempts: float) -> tuple[float, float]:
    """The 95 % score interval of a proportion (Wilson 1927), sound near 0 and 1 and for few attempts.

    `attempts` may be an effective number, so it need not be whole.
    """
    if not 0.0 <= rate <= 1.0 or attempts <= 0:
        raise ValueError(f"no interval for a rate of {rate} in {attempts} attempts")
    spread = Z_95**2 / attempts
    centre = (rate + spread / 2) / (1 + spread)
    half_width = Z_95 / (1 + spread) * math.sqrt(rate * (1 - rate) / attempts + spread / (4 * attempts))
    low = 0.0 if rate == 0.0 else max(0.0, centre - half_width)
    high = 1.0 if rate == 1.0 else min(1.0, centre + half_width)
    return low, high


def success_rate(outcomes: Sequence[bool]) -> Estimate:
    """Success of one attempt per task, with the Wilson interval. Raises ValueError without outcomes."""
    if not outcomes:
        raise ValueError("no success rate without outcomes")
    rate = sum(outcomes) / len(outcomes)
    low, high = wilson_interval(rate, len(outcomes))
    return Estimate(rate, low, high, tasks=len(outcomes), attempts=len(outcomes))


def sampled_success_rate(outcomes: Mapping[str, Sequence[bool]]) -> Estimate:
    """Success over several sampled attempts per task, keyed by task.

    The interval is Wilson's at the effective number of attempts (Dean and Pagano 2015, "Evaluating confidence
    interval methods for binomial proportions in clustered surveys"): the variance of the rate is taken
    between tasks (a ratio of totals, linearised) and turned into the number of independent attempts that
    would have it, at most the number made. Where every attempt had the same outcome, or there is one task
    only, that variance says nothing, and each task counts as one attempt.

    Raises ValueError without tasks or for a task without attempts.
    """
    if not outcomes or not all(outcomes.values()):
        raise ValueError("a sampled success rate needs tasks, each with at least one attempt")
    tasks = len(outcomes)
    attempts = sum(len(results) for results in outcomes.values())
    rate = sum(sum(results) for results in outcomes.values()) / attempts
    residuals = (sum(results) - rate * len(results) for results in outcomes.values())
    squares = math.fsum(residual**2 for residual in residuals)
    if rate in (0.0, 1.0) or tasks == 1:
        effective = float(tasks)
    elif squares == 0.0:
        effective = float(attempts)
    else:
        variance = tasks / (tasks - 1) * squares / attempts**2
        effective = min(float(attempts), rate * (1 - rate) / variance)
    low, high = wilson_interval(rate, effective)
    return Estimate(rate, low, high, tasks=tasks, attempts=attempts)


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """Chance that at least one of `k` attempts, drawn without replacement from those made, succeeded.

    The unbiased estimator of Chen et al. 2021 (arXiv 2107.03374, equation 1). Average it over tasks.
    Raises ValueError when fewer than `k` attempts were made.
    """
    if not 0 <= successes <= attempts or not 1 <= k <= attempts:
        raise ValueError(f"pass@{k} is not defined for {successes} successes in {attempts} attempts")
    return 1.0 - math.comb(attempts - successes, k) / math.comb(attempts, k)


def paired_difference(before: Mapping[str, bool], after: Mapping[str, bool]) -> PairedDifference:
    """How two checkpoints differ on the same tasks, one attempt each, keyed by task.

    The interval is the adjusted Wald interval of Bonett and Price 2012 for paired proportions. Raises
    ValueError when the two were not tried on the same tasks.
    """
    if not before or before.keys() != after.keys():
        raise ValueError(f"the two were not tried on the same tasks ({len(before)} and {len(after)})")
    tasks = len(before)
    gained = sum(after[task] and not before[task] for task in before)
    lost = sum(before[task] and not after[task] for task in before)
    up, down = (gained + 1) / (tasks + 2), (lost + 1) / (tasks + 2)
    half_width = Z_95 * math.sqrt((up + down - (up - down) ** 2) / (tasks + 2))
    changed = gained + lost
    tail = sum(math.comb(changed, count) for count in range(min(gained, lost) + 1))
    return PairedDifference(
        difference=(gained - lost) / tasks,
        low=max(-1.0, up - down - half_width),
        high=min(1.0, up - down + half_width),
        tasks=tasks,
        gained=gained,
        lost=lost,
        p_value=min(1.0, 2 * tail / 2**changed),
    )


def mean_over_tasks(values: Mapping[str, Sequence[float]]) -> MeanEstimate:
    """The mean of all numbers, keyed by their task.

    The interval is Student's t with tasks - 1 degrees of freedom; the variance is taken between tasks, as
    that of a ratio of totals, linearised (Cochran 1977, "Sampling Techniques", section 6.3). Raises
    ValueError without tasks or for a task without numbers.
    """
    if not values or not all(values.values()):
        raise ValueError("a mean over tasks needs tasks, each with at least one number")
    tasks, count = len(values), sum(map(len, values.values()))
    mean = math.fsum(math.fsum(each) for each in values.values()) / count
    if tasks == 1:
        return MeanEstimate(mean, None, None, tasks, count)
    squares = math.fsum((math.fsum(each) - mean * len(each)) ** 2 for each in values.values())
    half_width = student_quantile(tasks - 1) * math.sqrt(tasks / (tasks - 1) * squares) / count
    return MeanEstimate(mean, mean - half_width, mean + half_width, tasks, count)


def student_quantile(degrees: int) -> float:
    """The 97.5 % quantile of Student's t: 95 % of the distribution lie within plus and minus this value.

    Bisection on the closed form for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4).
    """
    if degrees < 1:
        raise ValueError(f"Student's t needs at least one degree of freedom, got {degrees}")
    low, high = 0.0, 1e3
    for _ in range(80):
        middle = (low + high) / 2
        if student_coverage(middle, degrees) < 0.95:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def student_coverage(t: float, degrees: int) -> float:
    """Probability that |T| <= t, where T has Student's t distribution with this many degrees of freedom."""
    angle = math.atan2(t, math.sqrt(degrees))
    cosine = math.cos(angle)
    odd = degrees % 2 == 1
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(2 if odd else 1, degrees, 2):
        total += term
        term *= power / (power + 1) * cosine**2
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


_RESAMPLES = 10_000


def bootstrap_low(samples: Sequence[Sequence[float]], signs: Sequence[int], confidence: float) -> float:
    """The lower confidence bound of a sum of means, such as `mean(a) - mean(b)` with the signs 1 and -1.

    Each sample is drawn again with replacement, 10,000 times from a fixed seed; the bound is the
    `1 - confidence` quantile (the percentile bootstrap of Efron 1979). Numbers of a sample that belong
    together, such as those of one task, have to be one number. Raises ValueError for an empty sample.
    """
    import numpy as np  # planning does not need it

    if not samples or not all(map(len, samples)):
        raise ValueError("a bootstrap needs samples, each with at least one number")
    draw = np.random.default_rng(0)
    total = np.zeros(_RESAMPLES)
    for sample, sign in zip(samples, signs, strict=True):
        values = np.asarray(sample, dtype=np.float64)
        for begin in range(0, _RESAMPLES, 1000):
            chosen = draw.integers(len(values), size=(1000, len(values)))
            total[begin : begin + 1000] += sign * values[chosen].mean(axis=1)
    return float(np.quantile(total, 1 - confidence, method="lower"))
