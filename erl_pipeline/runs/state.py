"""The state of a stored run: how far it is, its last score, its last checkpoint, and its report."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.plan import StageKey
from erl_pipeline.runs.config import method_columns, readable_config, type_of
from erl_pipeline.runs.run_plans import policy_stages
from erl_pipeline.stages.evaluation.evaluate import EVALUATE
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError, DamagedArtifact
from storage.lineage.graph import current_entries
from storage.runs.documents import IMPORTED
from storage.runs.ledger import LedgerEntry
from storage.runs.run import Run

REPORTED_ITERATIONS = 100
"""The most iterations with which a run gets its report automatically. Writing a report reads the whole run,
so a longer run gets one only by `erl-pipeline report`."""


def place_of(entry: LedgerEntry) -> StageKey:
    """The place in a plan at which a ledger has an artifact."""
    return StageKey(entry.iteration or 0, entry.stage, entry.key)


def policy_makers(config: RunConfig) -> tuple[str, str]:
    """The stages that make the policy of a run: its first one, and the last one of each iteration. They do
    not depend on the environment, which need not be installed."""
    first, last = policy_stages(config)
    return first.name, last.name


def completed_iterations(config: RunConfig, entries: Iterable[LedgerEntry]) -> int:
    """The number of the last iteration whose policy is committed."""
    _, last = policy_makers(config)
    return max((entry.iteration or 0 for entry in entries if entry.stage == last), default=0)


def begun_iterations(entries: Iterable[LedgerEntry]) -> int:
    """The number of the last iteration of which anything is committed.

    It may be beyond the configuration: a run does not record the `--iterations` of its commands.
    """
    return max((entry.iteration or 0 for entry in entries), default=0)


def latest_checkpoint(
    config: RunConfig, entries: Iterable[LedgerEntry], iteration: int | None = None
) -> LedgerEntry | None:
    """The policy at the end of a run, or of one of its iterations; iteration 0 has the first policy."""
    first, last = policy_makers(config)
    found = [
        entry
        for entry in entries
        if entry.stage == (last if entry.iteration else first) and iteration in (None, entry.iteration or 0)
    ]
    return max(found, key=lambda entry: entry.iteration or 0, default=None)


def current_checkpoint(
    store: ArtifactStore, run: Run, config: RunConfig, iteration: int | None = None
) -> LedgerEntry | None:
    """As `latest_checkpoint`, without what was made before an edit of the code."""
    return latest_checkpoint(config, current_entries(store, run.recorded()), iteration)


RunState = Literal["begun", "stopped", "finished", "imported", "memory", "unreadable"]
"""`begun`: nothing is committed. `stopped`: it can go on. `imported`: imported trajectories. `memory`: a
standalone memory. `unreadable`: this version does not know its settings, or a plug-in is not installed.
"""


@dataclass(frozen=True)
class HeldOutScore:
    """Success rate of greedy first attempts on held-out tasks after an iteration, with its 95 % interval."""

    iteration: int
    success: float
    low: float
    high: float


@dataclass(frozen=True)
class RunSummary:
    """`done`, `begun` and `wanted` are iterations, None if they are not known. `begun`: the last one of which
    anything is committed. `wanted`: those of the configuration. `method` is None for a run that is not
    trained."""

    name: str
    method: str | None
    state: RunState
    done: int | None
    begun: int | None
    wanted: int | None
    score: HeldOutScore | None


def summarize_run(store: ArtifactStore, run: Run) -> RunSummary:
    """How far a run is. It is not checked whether a process is working on it."""
    if IMPORTED in run.config:
        return RunSummary(run.name, None, "imported", None, None, None, None)
    from storage.memory.standalone import STANDALONE  # Planning reads no tables.

    if run.config.get(STANDALONE):
        return RunSummary(run.name, None, "memory", None, None, None, None)
    entries = current_entries(store, run.recorded())
    method, score = type_of(run.config, "method"), _last_score(store, entries)
    try:
        config = readable_config(run)
    except ConfigError:
        return RunSummary(run.name, method, "unreadable", None, None, None, score)
    done, begun = completed_iterations(config, entries), begun_iterations(entries)
    finished = done >= max(begun, config.iterations)
    state: RunState = "finished" if finished else "stopped" if entries else "begun"
    return RunSummary(run.name, method, state, done, begun, config.iterations, score)


def _last_score(store: ArtifactStore, entries: Iterable[LedgerEntry]) -> HeldOutScore | None:
    """The newest evaluation on the run's own held-out tasks; None if there is none, or it is damaged."""
    evaluations = [entry for entry in entries if entry.stage == EVALUATE.name]
    newest = max(evaluations, key=lambda entry: entry.iteration or 0, default=None)
    if newest is None:
        return None
    try:
        manifest = store.find(newest.artifact_id, newest.stage)
    except DamagedArtifact:
        return None
    if manifest is None:
        return None
    rate, low, high = (manifest.metrics[f"greedy_success{end}"] for end in ("", "_low", "_high"))
    return HeldOutScore(newest.iteration or 0, rate, low, high)


def write_run_report(store: ArtifactStore, run: Run, output: Path) -> Path:
    """Write the report of a run as one HTML file; return `output`.

    Raises:
        ConfigError: this version of the program does not know the run's settings.
        InputError: the run holds imported trajectories and was never trained.
        StoreError: an artifact that the ledger names is missing or damaged, or `output` cannot be written.
    """
    from erl_pipeline.runs.environment_checks import state_of_qualification, tasks_of_run
    from erl_pipeline.views.report.page import RunDescription, write_report

    config = readable_config(run)
    tasks = tasks_of_run(store, run)
    description = RunDescription(
        columns=method_columns(config),
        roles=config.roles,
        done=completed_iterations(config, current_entries(store, run.recorded())),
        environment="" if tasks is None else state_of_qualification(store, tasks)[1],
        config=config,
    )
    return write_report(store, run, description, output)


def renew_report(store: ArtifactStore, run: Run, iterations: int, page: Path) -> Path | None:
    """Write the report of a run again after so many iterations; return `page`.

    Beyond `REPORTED_ITERATIONS` a report takes too long to be written each time. An existing one is then
    removed, so that no report is left that lacks iterations, and None is returned. Raises the errors of
    `write_run_report`.
    """
    if iterations <= REPORTED_ITERATIONS:
        return write_run_report(store, run, page)
    page.unlink(missing_ok=True)
    return None
