"""A run's numbers as an MLflow run, on a tracking server or in a local file."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from erl_pipeline.views.trackers.writer import Mark, stage_numbers
from storage.artifacts.manifest import Manifest, code_version
from storage.artifacts.recipe import digest
from storage.errors import ConfigError, StoreError
from storage.filesystem import store_errors
from storage.runs.run import Run
from storage.runs.warnings import RunWarning

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.entities import Run as MlflowRun

_EXPERIMENT = "erl-pipeline"
_IDENTITY_TAG = "erl_pipeline.identity"
_MARK_TAG = "erl_pipeline.mark"

# The most that MLflow accepts in one request.
_MOST_METRICS = 1000
_MOST_PARAMETERS = 100

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # MLflow reports usage to its makers as soon as it is imported.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "4",  # Takes half a minute; MLflow's default of 7 takes four.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # Standard output is for what commands print.
}


class MlflowWriter:
    """One MLflow run for one run; each later start continues it (a `LastingWriter`).

    Numbers go to the server or file that MLflow's own `MLFLOW_TRACKING_URI` names, without it to `mlflow.db`
    under the run's folder. The experiment is the one that `MLFLOW_EXPERIMENT_NAME` names, or `erl-pipeline`.
    The MLflow run is found again by a tag, made from the run's name and the time of its first ledger entry.

    MLflow cannot remove points, but it stores points with equal name, step, time and value once. So what is
    written again after a kill changes nothing there. An artifact that was damaged and made again has another
    time, so its points appear beside the old ones.

    Every method raises StoreError when MLflow cannot be reached or written; the constructor also raises
    ConfigError when MLflow is not installed.
    """

    def __init__(self, run_folder: Path, run: Run, store_uri: str, settings: BaseModel) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        try:
            from mlflow import MlflowClient, get_tracking_uri, is_tracking_uri_set
        except ModuleNotFoundError as error:
            raise ConfigError(
                "metrics: mlflow is not installed: pip install mlflow-skinny, or take it out of metrics"
            ) from error
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # It logs each database table that it creates.
        self._run, self._store_uri, self._settings = run, store_uri, settings
        if is_tracking_uri_set():
            artifacts, uri = None, get_tracking_uri()
        else:
            with store_errors("write", run_folder):
                run_folder.mkdir(parents=True, exist_ok=True)
            folder = run_folder.resolve()
            # Nothing is stored there. Without it, MLflow records a folder below the current directory.
            artifacts, uri = (folder / "mlflow-artifacts").as_uri(), f"sqlite:///{folder / 'mlflow.db'}"
        self._place = _without_credentials(uri)
        self._waiting: list[Metric] = []
        self._mlflow_run: str | None = None
        with self._errors():
            self._client = MlflowClient(tracking_uri=uri)
            self._experiment = self._find_or_create_experiment(artifacts)

    def mark(self) -> Mark | None:
        """The mark that an earlier start left in a tag; None if there is none."""
        if not self._run.recorded():
            return None
        with self._errors():
            run = self._find_run()
        tag = "" if run is None else run.data.tags.get(_MARK_TAG, "")
        iteration, _, digest_of_record = tag.partition(" ")
        return Mark(int(iteration), digest_of_record) if digest_of_record else None

    def set_mark(self, mark: Mark) -> None:
        """Write the mark into a tag."""
        with self._errors():
            self._client.set_tag(self._started_run(), _MARK_TAG, f"{mark.iteration} {mark.digest}")

    def supersede(self, iteration: int) -> None:
        """Do nothing: MLflow cannot remove points. New points that differ appear beside the old ones."""

    def write(self, iteration: int, manifest: Manifest) -> None:
        """Queue the stage's numbers, with the time at which its artifact was finished."""
        from mlflow.entities import Metric

        milliseconds = int(manifest.finished_at.timestamp() * 1000)
        self._waiting += [
            Metric(name, value, milliseconds, iteration) for name, value in stage_numbers(manifest).items()
        ]

    def warn(self, warning: RunWarning) -> None:
        """Write the warning into a tag."""
        with self._errors():
            self._client.set_tag(
                self._started_run(), f"erl_pipeline.warning.{warning.kind}", warning.sentence
            )

    def flush(self) -> None:
        """Send the numbers that are queued."""
        with self._errors():
            for place in range(0, len(self._waiting), _MOST_METRICS):
                metrics = self._waiting[place : place + _MOST_METRICS]
                self._client.log_batch(self._started_run(), metrics=metrics)
            self._waiting = []

    def close(self) -> None:
        """Send what is left and mark the MLflow run as ended; the next start opens it again."""
        self.flush()
        if self._mlflow_run is not None:
            with self._errors():
                self._client.set_terminated(self._mlflow_run)

    def _find_or_create_experiment(self, artifacts: str | None) -> str:
        from mlflow.environment_variables import MLFLOW_EXPERIMENT_NAME

        name = MLFLOW_EXPERIMENT_NAME.get() or _EXPERIMENT
        found = self._client.get_experiment_by_name(name)
        if found is None:
            return str(self._client.create_experiment(name, artifact_location=artifacts))
        return str(found.experiment_id)

    def _find_run(self) -> MlflowRun | None:
        wanted = f"tags.`{_IDENTITY_TAG}` = '{self._identity()}'"
        found = self._client.search_runs([self._experiment], wanted, max_results=1)
        return found[0] if found else None

    def _identity(self) -> str:
        return digest([self._run.name, self._run.recorded()[0].recorded_at.isoformat()])

    def _started_run(self) -> str:
        """The MLflow run's id. It is found or created only when there is something to send, because its
        identity needs a ledger entry."""
        if self._mlflow_run is None:
            tags = {"erl_pipeline.store": self._store_uri, "erl_pipeline.code_version": code_version()}
            parameters = dict(_flat(self._settings))
            run = self._find_run()
            if run is None:
                tags[_IDENTITY_TAG] = self._identity()
                run = self._client.create_run(self._experiment, run_name=self._run.name, tags=tags)
                self._log_parameters(run.info.run_id, parameters)
            else:
                self._continue_run(run, tags, parameters)
            self._mlflow_run = run.info.run_id
        return self._mlflow_run

    def _continue_run(self, run: MlflowRun, tags: Mapping[str, str], parameters: Mapping[str, str]) -> None:
        """Mark a run of an earlier start as running again, and record what has changed.

        MLflow's parameters cannot change once they are set, so settings that changed since become tags.
        """
        known, told = run.data.params, run.data.tags
        self._client.update_run(run.info.run_id, status="RUNNING")
        changed = {
            tag: value
            for name, value in parameters.items()
            if (tag := f"erl_pipeline.continued_with.{name}") in told or known.get(name, value) != value
        }
        for name, value in {**tags, **changed}.items():
            self._client.set_tag(run.info.run_id, name, value)
        # A start that was killed may have sent only some of them.
        self._log_parameters(
            run.info.run_id, {name: value for name, value in parameters.items() if name not in known}
        )

    def _log_parameters(self, run_id: str, parameters: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        listed = [Param(name, value) for name, value in parameters.items()]
        for place in range(0, len(listed), _MOST_PARAMETERS):
            self._client.log_batch(run_id, params=listed[place : place + _MOST_PARAMETERS])

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (MlflowException, SQLAlchemyError) as error:
            # Closing must not wait for MLflow again; the next start writes what is missing.
            self._waiting, self._mlflow_run = [], None
            reason = _without_credentials(str(error).strip().splitlines()[0].rstrip("."))
            raise StoreError(
                f"metrics: MLflow at {self._place} failed: {reason}. Check MLFLOW_TRACKING_URI and what it "
                "names, or take mlflow out of metrics; then run the same command again."
            ) from error


def _flat(settings: BaseModel, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every setting as `group.name` and its value, in JSON unless it is text.

    A mapping gives only its keys: `engine.environment` may hold secrets.
    """
    plain: dict[str, Any] = settings.model_dump(mode="json")
    for name, value in plain.items():
        inner = getattr(settings, name)
        if isinstance(inner, BaseModel):
            yield from _flat(inner, f"{prefix}{name}.")
        else:
            shown = list(value) if isinstance(value, dict) else value
            yield f"{prefix}{name}", shown if isinstance(shown, str) else json.dumps(shown)


def _without_credentials(text: str) -> str:
    """The text, without user and password in its addresses."""
    return re.sub(r"//[^/\s]*@", "//", text)
