"""A run in words: its state and score, its size, who works on it, its results by iteration, and what of it is
damaged."""

from dataclasses import asdict, dataclass
from typing import Any

from command_line.output import counted, print_json, print_line, print_table
from erl_pipeline.evaluation.history import stored_records, training_cost
from erl_pipeline.evaluation.iterations import history_rows
from erl_pipeline.runs.config import method_columns, readable_config
from erl_pipeline.runs.state import (
    HeldOutScore,
    RunSummary,
    begun_iterations,
    completed_iterations,
    summarize_run,
)
from erl_pipeline.views.report.tables import iteration_table
from storage.artifacts.store import ArtifactStore
from storage.lineage.graph import current_entries
from storage.runs.documents import read_origin
from storage.runs.ledger import latest_entries
from storage.runs.notes import RunNotes, read_notes
from storage.runs.run import RunStore
from storage.upkeep.runs import RunUsage, find_unrecorded

_SHOWN = 5
"""Most damaged artifacts that are printed; --json gives all."""


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


def show_status(run: str, store: str, json: bool) -> None:
    """Print how far a run is. Raises ConfigError if its configuration cannot be read."""
    opened = RunStore(store).open(run)
    config = readable_config(opened)
    artifact_store, recorded = ArtifactStore(store), opened.recorded()
    entries = current_entries(artifact_store, recorded)
    unrecorded = find_unrecorded(artifact_store, opened, recorded)
    history = sorted(stored_records(artifact_store, entries), key=lambda record: record.iteration)
    shown_ids = {record.manifest.artifact_id for record in history}
    lost = [entry for entry in entries if entry.artifact_id not in shown_ids]
    columns = method_columns(config)
    rows = history_rows(history, columns)
    done, begun = completed_iterations(config, entries), begun_iterations(entries)
    origin = read_origin(store, run)
    if json:
        artifacts = [
            {
                "iteration": record.iteration,
                "stage": record.stage,
                "key": record.key,
                "artifact_id": record.manifest.artifact_id,
                "reused": record.reused,
            }
            for record in history
        ]
        print_json(
            {
                "run": opened.name,
                "store": store,
                "origin": origin and origin.model_dump(),
                "method": config.method.type,
                "iterations_done": done,
                "iterations_begun": begun,
                "iterations_configured": config.iterations,
                "rows": [row.plain(columns) for row in rows],
                "artifacts": artifacts,
                "damaged": [entry.artifact_id for entry in lost],
                "unrecorded": [each.artifact_id for each in unrecorded.artifacts] if unrecorded else [],
            }
        )
        return
    of_all = all_iterations(done, begun, config.iterations)
    print_line(
        f"Run {opened.name}: {config.method.type}, {done} of {of_all} "
        f"{'iteration' if of_all == '1' else 'iterations'} done"
    )
    if origin:
        print_line(f"Begun {origin.describe()}")
    if unrecorded:
        print_line(f"Warning: {unrecorded.sentence}")
    for entry in lost[:_SHOWN]:
        where = f"iteration {entry.iteration or 0}, {entry.stage}"
        print_line(f"damaged or missing, and not in this table: artifact {entry.artifact_id} ({where})")
    if lost:
        print_line(
            f"{counted(len(lost), 'artifact')} made again by: "
            f"erl-pipeline train CONFIG --name {opened.name} --check"
        )
    tokens = int(
        training_cost(history, "generated_tokens", up_to=max((row.iteration for row in rows), default=0))
    )
    print_line(f"{counted(len(entries), 'artifact')}; {counted(tokens, 'token')} generated in rollouts")
    if older := len(latest_entries(recorded)) - len(entries):
        print_line(
            f"{counted(older, 'artifact')} of before an edit or an upgrade not counted: what they were made "
            "from was made again since then"
        )
    table = iteration_table(rows, columns)
    print_table(table.cells)
    print_line(table.legend)
