"""A stored run: how `runs` describes it, where its local files lie, and whether there is anything left to
train."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erl_pipeline.runs.state import HeldOutScore, RunSummary, summarize_run
from storage.artifacts.store import ArtifactStore
from storage.filesystem import open_root
from storage.runs.run import RunStore
from storage.upkeep.runs import RunUsage

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from storage.runs.run import Run


def run_folder(store_uri: str, run_name: str) -> Path:
    """The local folder for files of a run that are not artifacts, such as its report and Prefect's log."""
    return open_root(store_uri).scratch / "runs" / run_name


def beyond_end(run: Run, span: tuple[int, int] | None) -> str:
    """That a span begins after a run's last iteration; empty if it does not."""
    last = max((entry.iteration or 0 for entry in run.stages()), default=0)
    return f"run {run.name} ends with iteration {last}" if span is not None and span[0] > last else ""


def find_finished_run(config: RunConfig, store_uri: str, iterations: int) -> Run | None:
    """The run of `config`, if its ledger has all of the plan and the last iteration's artifacts are intact.

    Their files are hashed again. If one is damaged the result is None: training, which also checks them, then
    reports it and makes it again. Of artifacts of earlier iterations only the manifests are looked at.
    """
    from erl_pipeline.runs.config import refuse_other_settings
    from erl_pipeline.runs.planning import lost_stages, plan_for, recorded_ids
    from storage.artifacts.store import ArtifactStore
    from storage.errors import InputError, StoreError
    from storage.runs.run import RunStore

    runs = RunStore(store_uri)
    if config.name not in runs.list():
        return None
    run = runs.open(config.name)
    entries = run.recorded()
    if not entries:
        return None
    refuse_other_settings(run, config)
    recorded = recorded_ids(entries)
    plan = plan_for(store_uri, run, config, iterations, entries=entries)
    if any(recorded.get(node.place) != node.artifact_id for node in plan.nodes):
        return None
    store = ArtifactStore(store_uri)
    try:
        if lost_stages(store, plan, recorded):
            return None
        for node in plan.of_iteration(iterations):
            store.open(node.artifact_id)
    except (InputError, StoreError):
        return None
    return run


@dataclass(frozen=True)
class DescribedRun:
    """A run's summary, how much of the store it takes, and who works on it (`holder`; None for nobody)."""

    summary: RunSummary
    usage: RunUsage
    holder: str | None

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
        }


def describe_run(store: str, name: str, usage: RunUsage) -> DescribedRun:
    """Describe a run. Raises InputError for an unknown name."""
    runs = RunStore(store)
    summary = summarize_run(ArtifactStore(store), runs.open(name))
    return DescribedRun(summary, usage, runs.holder(name))


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
