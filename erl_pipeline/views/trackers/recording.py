"""Recording the metrics of a run while its stages work, also after an interruption."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from erl_pipeline.config.run import RunConfig
from erl_pipeline.views.trackers.mlflow import MlflowWriter
from erl_pipeline.views.trackers.run_record import RunRecord
from erl_pipeline.views.trackers.tensorboard import TensorBoardWriter
from erl_pipeline.views.trackers.wandb import WandbWriter
from erl_pipeline.views.trackers.writer import MetricsWriter
from storage.artifacts.store import ArtifactStore
from storage.filesystem import open_root
from storage.runs.ledger import LedgerEntry
from storage.runs.run import Run
from storage.runs.warnings import read_warnings


@contextmanager
def recorded_metrics(
    config: RunConfig, store: ArtifactStore, run: Run, entries: Sequence[LedgerEntry]
) -> Iterator[list[RunRecord]]:
    """Open the trackers that `metrics` names; the block gets one record for each.

    Artifacts and warnings that are added to a record within the block go to its tracker. What the run had
    before and a tracker lacks is written first, from the ledger. Records are views of the store, so a run
    that was killed at any moment has each step once.

    Args:
        entries: the latest ledger entry of each place.

    Raises ConfigError when a package that the setting needs is not installed.
    """
    folder = open_root(store.uri).scratch / "runs" / run.name
    with ExitStack() as stack:
        records = []
        for name in config.metrics:
            writer = stack.enter_context(closing(_open(name, folder, config, store.uri, run)))
            records.append(RunRecord(writer, store, entries, lag=config.pipeline.lag))
        for warning in read_warnings(store.uri, run.name):
            for record in records:
                record.warn(warning)
        yield records


def _open(name: str, folder: Path, config: RunConfig, store_uri: str, run: Run) -> MetricsWriter:
    if name == "tensorboard":
        return TensorBoardWriter(folder)
    if name == "mlflow":
        return MlflowWriter(folder, run, store_uri, config)
    return WandbWriter(folder, config.name)
