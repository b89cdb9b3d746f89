"""The training flow: a whole run, its iterations as flows and its stages as tasks of Prefect."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.settings.legacy import Setting

from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.train import TrainingSummary, train
from flows.local_server import OrchestratorError, prefect_api
from flows.runner import PrefectRunner, call_as_flow


def train_with_prefect(
    context: RunContext, iterations: int | None, log_file: Path, check: bool = False
) -> TrainingSummary:
    """Begin or continue a run as `train` does, with Prefect scheduling and showing it.

    Args:
        iterations: passes through the stages; None takes the configuration's.
        log_file: gets what Prefect and its local server print.
        check: look at every artifact of the run, as `train` does with it.

    Raises:
        OrchestratorError: Prefect's API cannot be started, cannot be reached or went away.
    """
    runner = PrefectRunner(context)
    target = iterations or context.config.iterations

    def body() -> TrainingSummary:
        summary = train(context, target, runner, check)
        runner.publish_summary()
        return summary

    parameters = {"run": context.run.name, "store": context.store.uri, "iterations": target}
    with log_to_file(log_file), prefect_api(log_file) as url, temporary_settings(_settings(url)):
        try:
            return call_as_flow("training", context.run.name, body, parameters)
        except httpx.HTTPError as error:
            raise OrchestratorError(
                f"Prefect's API at {url} went away ({error}); what was committed is kept, so train again, "
                "or with --no-prefect"
            ) from error
        finally:
            # Both are sent in the background, and the local server is about to stop.
            EventsWorker.drain_all(timeout=5.0)
            APILogWorker.drain_all(timeout=5.0)


def _settings(url: str) -> dict[Setting, Any]:
    """Without heartbeats: at its end a synchronous flow waits a second for the thread that sends them."""
    return {PREFECT_API_URL: url, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Prefect's log goes to a file, so that its lines do not tear the progress display."""
    console = logging.getLogger().handlers
    prefect = logging.getLogger("prefect")
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def from_elsewhere(record: logging.LogRecord) -> bool:
        return not record.name.startswith("prefect")

    prefect.addHandler(handler)
    for each in console:
        each.addFilter(from_elsewhere)
    try:
        yield
    finally:
        for each in console:
            each.removeFilter(from_elsewhere)
        prefect.removeHandler(handler)
        handler.close()
