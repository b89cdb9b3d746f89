"""What a place for metrics must take, and which numbers it gets."""

from __future__ import annotations

from typing import Protocol

from storage.manifest import Manifest


class MetricsWriter(Protocol):
    """A place for one run's metrics that begins empty each time it is opened."""

    def write(self, iteration: int, manifest: Manifest) -> None:
        """Take the numbers of a stage's artifact, at the step of its iteration."""
        ...

    def flush(self) -> None:
        """Have all that was written where people see it."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


def stage_numbers(manifest: Manifest) -> dict[str, float]:
    """Counters, metrics and seconds of a stage, each as `stage/name`."""
    seconds = (manifest.finished_at - manifest.started_at).total_seconds()
    numbers = {**manifest.counters, **manifest.metrics, "seconds": seconds}
    return {
        f"{manifest.stage}/{name}": value for name, value in numbers.items() if isinstance(value, int | float)
    }
