"""Whether a server samples from the right policy: its log-probabilities compared with those of a probe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from erl_pipeline.engines.interface import Probe


@dataclass(frozen=True)
class LogprobDifference:
    """How far two sets of log-probabilities differ: mean and maximum of |difference|, in nats."""

    mean: float
    maximum: float

    def within(self, tolerance: LogprobDifference) -> bool:
        """Whether neither exceeds its bound; a difference that is no number exceeds every bound."""
        return self.mean <= tolerance.mean and self.maximum <= tolerance.maximum

    def or_worse(self, other: LogprobDifference) -> LogprobDifference:
        """The larger mean and the larger maximum of both; not a number where one of them is none."""
        # Python's `max` would drop a nan, depending on the order.
        mean, maximum = np.maximum((self.mean, self.maximum), (other.mean, other.maximum))
        return LogprobDifference(float(mean), float(maximum))


TOLERANCES = {
    "float32": LogprobDifference(mean=1e-4, maximum=1e-3),
    "float16": LogprobDifference(mean=3e-2, maximum=3e-1),
    "bfloat16": LogprobDifference(mean=2e-1, maximum=2.0),
}
"""How far server and probe may differ where the coarser of the two computes in this number type.

About three times what rounding alone gave with 135M parameters in bfloat16: 0.05 to 0.08 on average, at
most 0.7. Small updates change them by less than that. A weight that was not loaded is noticed all the same:
all weights are set to 0 before they are read, so log-probabilities are then wrong by nats.
"""


def tolerance(probe_dtype: str, server_dtype: str) -> LogprobDifference:
    """The looser of the two number types' tolerances."""
    return max(TOLERANCES[probe_dtype], TOLERANCES[server_dtype], key=lambda bound: bound.maximum)


def compare(probe: Probe, logprobs: Sequence[Sequence[float]]) -> LogprobDifference:
    """How far `logprobs`, of the last tokens of the probe's sequences, differ from the probe's.

    There may be more of them than the probe has; those of earlier tokens are left out.
    """
    theirs = [row[-len(mine) :] for row, mine in zip(logprobs, probe.logprobs, strict=True)]
    distance = np.abs(np.asarray(probe.logprobs) - np.asarray(theirs))
    return LogprobDifference(float(distance.mean()), float(distance.max()))


def compare_hot(probe: Probe, drawn: Sequence[tuple[int, float]]) -> LogprobDifference:
    """How far a server's log-probabilities of tokens that it drew differ from the probe's.

    One token was drawn after each of the probe's sequences, at `PROBE_TEMPERATURE`.
    """
    mine = [probe.hot_logprobs[row, token] for row, (token, _) in enumerate(drawn)]
    distance = np.abs(np.asarray(mine) - np.asarray([logprob for _, logprob in drawn]))
    return LogprobDifference(float(distance.mean()), float(distance.max()))
