"""What a place for metrics must take, and which numbers it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from storage.artifacts.manifest import Manifest
from storage.runs.warnings import RunWarning


class MetricsWriter(Protocol):
    """A place for one run's metrics that begins empty each time it is opened."""

    def write(self, iteration: int, manifest: Manifest) -> None:
        """Take the numbers of a stage's artifact, at the step of its iteration."""
        ...

    def warn(self, warning: RunWarning) -> None:
        """Take a warning of the run, at the step of its iteration. It may come again, and counts once."""
        ...

    def flush(self) -> None:
        """Have all that was written where people see it."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


@dataclass(frozen=True)
class Mark:
    """A lasting record has every artifact through `iteration`, and `digest` is over their ids."""

    iteration: int
    digest: str


@runtime_checkable
class LastingWriter(MetricsWriter, Protocol):
    """A place that keeps what earlier processes wrote, so that only what is new is written.

    `supersede` is called before the first `write`.
    """

    def mark(self) -> Mark | None:
        """The last mark that was set; None for a record that is new or cannot be gone on with."""
        ...

    def set_mark(self, mark: Mark) -> None:
        """Remember how far the record goes, after what was written is flushed."""
        ...

    def supersede(self, iteration: int) -> None:
        """What stands at this iteration and later no longer counts."""
        ...


def stage_numbers(manifest: Manifest) -> dict[str, float]:
    """Counters, metrics and seconds of a stage, each as `stage/name`."""
    seconds = (manifest.finished_at - manifest.started_at).total_seconds()
    numbers = {**manifest.counters, **manifest.metrics, "seconds": seconds}
    return {
        f"{manifest.stage}/{name}": value for name, value in numbers.items() if isinstance(value, int | float)
    }
