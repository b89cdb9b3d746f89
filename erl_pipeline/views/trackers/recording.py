"""Recording the metrics of a run while its stages work, whatever stopped it before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.views.trackers.mlflow import MlflowWriter
from erl_pipeline.views.trackers.run_record import RunRecord
from erl_pipeline.views.trackers.tensorboard import TensorBoardWriter
from erl_pipeline.views.trackers.wandb import WandbWriter
from erl_pipeline.views.trackers.writer import MetricsWriter
from storage.filesystem import open_root


@contextmanager
def recorded_metrics(context: RunContext) -> Iterator[None]:
    """Within the block, the artifacts of an open run are recorded as its `metrics` setting says.

    What the run had committed before and a record lacks is written first, from the ledger: records are views
    of the store, so a run that was killed at any moment has each step once.

    Raises ConfigError when a package that it names is not installed.
    """
    folder = open_root(context.store.uri).scratch / "runs" / context.run.name
    before = list(context.observers)
    with ExitStack() as stack:
        for name in context.config.metrics:
            writer = stack.enter_context(closing(_open(name, folder, context)))
            record = RunRecord(writer, context.store, context.stages())
            context.observers.append(record.add)
        try:
            yield
        finally:
            context.observers[:] = before


def _open(name: str, folder: Path, context: RunContext) -> MetricsWriter:
    if name == "tensorboard":
        return TensorBoardWriter(folder)
    if name == "mlflow":
        return MlflowWriter(folder, context.run, context.store.uri, context.config)
    return WandbWriter(folder, context.config.name)
