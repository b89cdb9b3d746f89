"""Recording the metrics of a run while its stages work, whatever stopped it before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from erl_pipeline.config.run import RunConfig
from erl_pipeline.metrics.tensorboard import TensorBoardWriter
from erl_pipeline.metrics.wandb import WandbWriter
from erl_pipeline.metrics.writer import MetricsWriter
from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.outcome import ProgressListener, StageOutcome
from storage.artifacts import ArtifactStore
from storage.errors import DamagedArtifact
from storage.filesystem import open_root
from storage.runs import Run

_LEFT_OUT = frozenset({"rollout_shard", "evaluate_on_request"})
"""Shards are summed up by `generate_rollouts`; evaluations on request are no part of the training."""


class MetricsListener:
    """A `ProgressListener` that passes everything on to another and records each finished stage once.

    What the run had committed before is written first, from its ledger: the record is a view of the store
    that each start makes anew, so a run that was killed at any moment has each step once.
    """

    def __init__(
        self, inner: ProgressListener, writers: Sequence[MetricsWriter], store: ArtifactStore, run: Run
    ) -> None:
        self._inner = inner
        self._writers = writers
        self._store = store
        self._written: set[tuple[int, str, str]] = set()
        for entry in run.stages():
            self._write(entry.iteration, entry.stage, entry.artifact_id)
        self._flush()

    def stage_started(self, stage: str, iteration: int | None, total: int | None, unit: str) -> None:
        self._inner.stage_started(stage, iteration, total, unit)

    def advance(self, stage: str, amount: int, **numbers: float) -> None:
        self._inner.advance(stage, amount, **numbers)

    def waiting(self, what: str, seconds: float, detail: str) -> None:
        self._inner.waiting(what, seconds, detail)

    def stage_finished(self, outcome: StageOutcome) -> None:
        self._inner.stage_finished(outcome)
        if self._write(outcome.iteration, outcome.stage, outcome.artifact_id):
            self._flush()

    def warn(self, message: str) -> None:
        self._inner.warn(message)

    def _write(self, iteration: int | None, stage: str, artifact_id: str) -> bool:
        """Record an artifact; False where it was recorded already, or is not whole and will be made again."""
        place = (iteration or 0, stage, artifact_id)
        if stage in _LEFT_OUT or place in self._written:
            return False
        try:
            manifest = self._store.find(artifact_id, stage)
        except DamagedArtifact:
            manifest = None
        if manifest is None:
            return False
        for writer in self._writers:
            writer.write(iteration or 0, manifest)
        self._written.add(place)
        return True

    def _flush(self) -> None:
        for writer in self._writers:
            writer.flush()


@contextmanager
def recorded_metrics(context: RunContext) -> Iterator[None]:
    """Within the block, the stages of an open run are recorded as its `metrics` setting says.

    Raises ConfigError when a package that it names is not installed.
    """
    folder = open_root(context.store.uri).scratch / "runs" / context.run.name
    shown = context.listener
    with ExitStack() as stack:
        writers = []
        for name in context.config.metrics:
            writers.append(_open(name, folder, context.config))
            stack.enter_context(closing(writers[-1]))
        if writers:
            context.listener = MetricsListener(shown, writers, context.store, context.run)
        try:
            yield
        finally:
            context.listener = shown


def _open(name: str, folder: Path, config: RunConfig) -> MetricsWriter:
    return TensorBoardWriter(folder) if name == "tensorboard" else WandbWriter(folder, config.name)
