"""What a writer of metrics must support, and which numbers it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from storage.artifacts.manifest import Manifest
from storage.runs.warnings import RunWarning


class MetricsWriter(Protocol):
    """Writes one run's metrics to a tracker, which begins empty each time it is opened."""

    def write(self, iteration: int, manifest: Manifest) -> None:
        """Take the numbers of a stage's artifact, at the step of its iteration."""
        ...

    def warn(self, warning: RunWarning) -> None:
        """Take a warning of the run, at the step of its iteration. The same warning may come again, and
        counts once."""
        ...

    def flush(self) -> None:
        """Make all that was written visible to people."""
        ...

    def close(self) -> None:
        """Write what is left, and end."""
        ...


@dataclass(frozen=True)
class Mark:
    """How far a lasting record goes: it has all artifacts through `iteration`; `digest` is over their ids."""

    iteration: int
    digest: str


@runtime_checkable
class LastingWriter(MetricsWriter, Protocol):
    """A writer whose tracker keeps what earlier processes wrote, so that only what is new is written.

    `supersede` is called before the first `write`.
    """

    def mark(self) -> Mark | None:
        """The last mark that was set; None for a record that is new or cannot be continued."""
        ...

    def set_mark(self, mark: Mark) -> None:
        """Remember how far the record goes; called after what was written is flushed."""
        ...

    def supersede(self, iteration: int) -> None:
        """Discard what was recorded at this iteration and later, as far as the tracker allows that."""
        ...


def stage_numbers(manifest: Manifest) -> dict[str, float]:
    """Counters, metrics and seconds of a stage, each as `stage/name`."""
    seconds = (manifest.finished_at - manifest.started_at).total_seconds()
    numbers = {**manifest.counters, **manifest.metrics, "seconds": seconds}
    return {
        f"{manifest.stage}/{name}": value for name, value in numbers.items() if isinstance(value, int | float)
    }
