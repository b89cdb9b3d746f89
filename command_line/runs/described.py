"""A run in words: its state, how far it is, its score, its size, and who works on it."""

from dataclasses import asdict, dataclass
from typing import Any

from erl_pipeline.runs.state import HeldOutScore, RunSummary, summarize_run
from storage.artifacts.store import ArtifactStore
from storage.runs.notes import RunNotes, read_notes
from storage.runs.run import RunStore
from storage.upkeep.runs import RunUsage


@dataclass(frozen=True)
class DescribedRun:
    """A run's summary, how much of the store it takes, who works on it (`holder`; None for nobody), and what
    people say of it."""

    summary: RunSummary
    usage: RunUsage
    holder: str | None
    notes: RunNotes

    @property
    def state(self) -> str:
        """The run's state as a word or two."""
        return "at work" if self.holder else self.summary.state

    def as_json(self) -> dict[str, Any]:
        """The run as JSON values."""
        summary = self.summary
        return {
            "run": summary.name,
            "state": self.state,
            "method": summary.method,
            "iterations_done": summary.done,
            "iterations_begun": summary.begun,
            "iterations_configured": summary.wanted,
            "score": None if summary.score is None else asdict(summary.score),
            "artifacts": self.usage.artifacts,
            "own_bytes": self.usage.own,
            "shared_bytes": self.usage.shared,
            "worked_on_by": self.holder,
            "tags": list(self.notes.tags),
            "note": self.notes.note,
        }


def describe_run(store: str, name: str, usage: RunUsage) -> DescribedRun:
    """Describe a run. Raises InputError for an unknown name."""
    runs = RunStore(store)
    summary = summarize_run(ArtifactStore(store), runs.open(name))
    return DescribedRun(summary, usage, runs.holder(name), read_notes(store, name))


def score_text(score: HeldOutScore | None) -> str:
    """`0.375 (0.137 to 0.694)`: a success rate with its 95 % interval."""
    return "" if score is None else f"{score.success:.3f} ({score.low:.3f} to {score.high:.3f})"


def progress_text(summary: RunSummary) -> str:
    """`3 of 10`: done, of all; `""` if they are not known."""
    if summary.done is None or summary.begun is None or summary.wanted is None:
        return ""
    return f"{summary.done} of {all_iterations(summary.done, summary.begun, summary.wanted)}"


def all_iterations(done: int, begun: int, wanted: int) -> str:
    """How many iterations a run is to have: those of its configuration, or as many as it did. `4 or more` if
    it stopped in the fourth and the configuration has fewer: no file of a run tells the `--iterations` that a
    command was given."""
    return f"{begun} or more" if begun > max(done, wanted) else str(max(done, wanted))
