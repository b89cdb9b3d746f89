"""Logging the numbers of a run to trackers while its stages work, also after an interruption."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from erl_pipeline.config.run import RunConfig
from erl_pipeline.evaluation.history import is_on_request
from erl_pipeline.views.trackers import Mlflow, TensorBoard, Tracker, Wandb
from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import digest
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact
from storage.filesystem import open_root
from storage.runs.documents import RunWarning, read_warnings
from storage.runs.ledger import LedgerEntry
from storage.runs.run import Run


@contextmanager
def recorded_metrics(
    config: RunConfig, store: ArtifactStore, run: Run, entries: Sequence[LedgerEntry]
) -> Iterator[list[RunRecord]]:
    """Open the trackers that `metrics` names; the block gets one record for each.

    Artifacts and warnings that are added to a record within the block go to its tracker. What the run had
    before and a tracker lacks is logged first, from the ledger. Records are views of the store, so a run
    that was killed at any moment has each step once.

    Raises ConfigError when a package that the setting needs is not installed.
    """
    folder = open_root(store.uri).scratch / "runs" / run.name
    with ExitStack() as stack:
        records = []
        for name in config.metrics:
            tracker = stack.enter_context(closing(_open(name, folder, config, store.uri, run)))
            records.append(RunRecord(tracker, store, entries, lag=config.pipeline.lag))
        for warning in read_warnings(store.uri, run.name):
            for record in records:
                record.warn(warning)
        yield records


def _open(name: str, folder: Path, config: RunConfig, store_uri: str, run: Run) -> Tracker:
    if name == "tensorboard":
        return TensorBoard(folder)
    return Mlflow(folder, run, store_uri, config) if name == "mlflow" else Wandb(folder, config.name)


def stage_numbers(manifest: Manifest) -> dict[str, float]:
    """Counters, metrics and seconds of a stage, each as `stage/name`."""
    seconds = (manifest.finished_at - manifest.started_at).total_seconds()
    numbers = {**manifest.counters, **manifest.metrics, "seconds": seconds}
    return {
        f"{manifest.stage}/{name}": value for name, value in numbers.items() if isinstance(value, int | float)
    }


class RunRecord:
    """What a tracker has of a run, artifact by artifact, each once: brought up to date with the ledger first,
    then extended stage by stage.

    A tracker that keeps its numbers gets only what came after its mark, or everything if the mark does not
    match the ledger. Shards, whose numbers another artifact sums up, are left out, and so are evaluations on
    request, which are not part of the training.

    Args:
        lag: how many iterations before the newest may still be at work.
    """

    def __init__(
        self, tracker: Tracker, store: ArtifactStore, entries: Iterable[LedgerEntry], lag: int = 0
    ) -> None:
        self._tracker, self._store, self._lag = tracker, store, lag
        self._held: dict[int, dict[tuple[str, str], str]] = {}
        """Iteration -> (stage, key) -> artifact id."""
        for entry in filter(_is_shown, entries):
            self._held.setdefault(entry.iteration or 0, {})[entry.stage, entry.key] = entry.artifact_id
        mark = re.fullmatch(r"(\d+) (\w+)", tracker.mark())
        through = -1 if mark is None else int(mark[1])
        self._marked = through if mark is not None and self._digest(through) == mark[2] else -1
        tracker.forget(self._marked + 1)
        self._log_from(self._marked + 1)

    def warn(self, warning: RunWarning) -> None:
        """Record a warning of the run."""
        self._tracker.warn(warning)
        self._tracker.flush()

    def add(self, entry: LedgerEntry) -> None:
        """Record an artifact, unless it is recorded already; one that it replaces no longer counts."""
        iteration, place = entry.iteration or 0, (entry.stage, entry.key)
        before = self._held.get(iteration, {}).get(place)
        if not _is_shown(entry) or before == entry.artifact_id:
            return
        self._held.setdefault(iteration, {})[place] = entry.artifact_id
        if not self._tracker.lasting or (before is None and iteration > self._marked):
            self._log(iteration, place)
            self._flush()
            return
        if before is not None:
            # Later artifacts are added again one after the other; the next start logs what is missed.
            self._held = {at: found for at, found in self._held.items() if at <= iteration}
        self._marked = min(self._marked, iteration - 1)
        self._tracker.flush(f"{max(self._marked, 0)} {self._digest(self._marked)}")
        self._tracker.forget(iteration)
        self._log_from(iteration)

    def _log_from(self, first: int) -> None:
        """Log what the run has from this iteration on."""
        for iteration in sorted(at for at in self._held if at >= first):
            for place in list(self._held[iteration]):
                self._log(iteration, place)
        self._flush()

    def _log(self, iteration: int, place: tuple[str, str]) -> None:
        """Log an artifact's numbers. A damaged one is made again later, and is logged then."""
        try:
            manifest = self._store.find(self._held[iteration][place], place[0])
        except DamagedArtifact:
            manifest = None
        if manifest is None:
            del self._held[iteration][place]
        else:
            self._tracker.log(iteration, stage_numbers(manifest), manifest.finished_at)

    def _flush(self) -> None:
        """Show what was logged, and mark the record as complete through the iteration before those that may
        still be at work."""
        through = max(self._held, default=0) - 1 - self._lag
        if through <= self._marked:
            self._tracker.flush()
        else:
            self._marked = through
            self._tracker.flush(f"{through} {self._digest(through)}")

    def _digest(self, through: int) -> str:
        return digest(
            [
                [at, *sorted([*place, found] for place, found in of.items())]
                for at, of in sorted(self._held.items())
                if at <= through
            ]
        )


def _is_shown(entry: LedgerEntry) -> bool:
    return entry.kind != "trajectories" and not is_on_request(entry.stage)
