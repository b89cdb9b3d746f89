"""From the metrics of turns to those of an attempt."""

from __future__ import annotations

from collections.abc import Mapping


class TurnMetrics:
    """Sums the metrics of an attempt's turns; those in `means` are averaged over the turns that have them."""

    def __init__(self, means: frozenset[str]) -> None:
        self._means = means
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add the metrics of one turn."""
        for name, value in metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + 1

    def of_attempt(self) -> dict[str, float]:
        """The metrics of all turns together, by name."""
        return {
            name: total / self._counts[name] if name in self._means else total
            for name, total in sorted(self._sums.items())
        }
