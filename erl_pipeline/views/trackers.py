"""Where a run's numbers are shown besides the store: TensorBoard, Weights & Biases, MLflow.

A tracker has one function that takes numbers, `log`. What is logged when, and what a later start logs again,
is decided in `recording`. Methods raise StoreError when the tracker cannot be written.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.summary import text

from storage.artifacts.manifest import code_version
from storage.artifacts.recipe import digest
from storage.errors import ConfigError, StoreError, store_errors
from storage.filesystem import open_root, replace_file
from storage.runs.documents import RunWarning
from storage.runs.run import Run

if TYPE_CHECKING:
    from mlflow.entities import Metric

_MOST_METRICS, _MOST_PARAMETERS = 1000, 100  # of one request to MLflow
_MLFLOW_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # MLflow reports usage to its makers as soon as it is imported.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "4",  # Takes half a minute; MLflow's default of 7 takes four.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # Standard output is for what commands print.
}
_IDENTITY_TAG, _MARK_TAG = "erl_pipeline.identity", "erl_pipeline.mark"


class Tracker(ABC):
    """A place where one run's numbers go."""

    lasting: ClassVar[bool] = True
    """Whether it keeps what earlier processes logged; else it begins empty each time it is opened."""

    @abstractmethod
    def log(self, step: int, numbers: Mapping[str, float], at: datetime) -> None:
        """Take numbers by name; `at` is when they were measured."""

    @abstractmethod
    def warn(self, warning: RunWarning) -> None:
        """Take a warning. The same one may come again, and counts once."""

    def forget(self, step: int) -> None:  # noqa: B027 - not every tracker can
        """Let what was logged at this step and later not count, where the tracker can do that; called before
        the first `log`."""

    def flush(self, mark: str = "") -> None:  # noqa: B027 - nothing to do where all is visible at once
        """Make all that was logged visible; then remember a mark that says how far it goes."""

    def mark(self) -> str:
        """The mark that was last remembered; empty if there is none."""
        return ""

    @abstractmethod
    def close(self) -> None:
        """Write what is left, and end."""


class TensorBoard(Tracker):
    """Event files in `tensorboard` under a run's folder, one for each start, in the order of their names.

    A `START` event tells TensorBoard from which step on older events no longer count. tensorboardX's own
    `SummaryWriter` is not used: it writes in a thread, and waits for that thread for ever if the disk is
    full.
    """

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / "tensorboard"
        self._events: EventsWriter | None = None
        self._number = 0

    def log(self, step: int, numbers: Mapping[str, float], at: datetime) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._write(at.timestamp(), step=step, summary=Summary(value=values))

    def warn(self, warning: RunWarning) -> None:
        said = text(f"warnings/{warning.kind}", warning.sentence)
        self._write(warning.said_at.timestamp(), step=warning.iteration, summary=said)

    def forget(self, step: int) -> None:
        if step == 0:
            self.close()
            with store_errors("write", self._folder):
                if self._folder.exists():
                    shutil.rmtree(self._folder)
        self._write(time.time(), step=step, session_log=SessionLog(status=SessionLog.START))

    def flush(self, mark: str = "") -> None:
        with store_errors("write", self._folder):
            if self._events is not None:
                self._events.flush()
            if mark:
                # What the mark speaks of must be on the disk before it is.
                for path in self._folder.glob(f"events.{self._number:06d}.*"):
                    with path.open("rb") as file:
                        os.fsync(file.fileno())
                self._folder.mkdir(parents=True, exist_ok=True)
                replace_file(open_root(str(self._folder)), str(self._folder / "mark"), mark.encode())

    def mark(self) -> str:
        path = self._folder / "mark"
        with store_errors("read", path):
            return path.read_text(encoding="utf-8") if path.is_file() else ""

    def close(self) -> None:
        with store_errors("write", self._folder):
            if self._events is not None:
                events, self._events = self._events, None
                events.close()

    def _write(self, at: float, **event: Any) -> None:
        with store_errors("write", self._folder):
            if self._events is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                # TensorBoard reads the files in the order of their names. Names made of times alone could be
                # equal, or come from different clocks.
                found = [re.match(r"events\.(\d{6,})\.", path.name) for path in self._folder.iterdir()]
                self._number = max((int(match[1]) for match in found if match), default=0) + 1
                self._events = EventsWriter(str(self._folder / f"events.{self._number:06d}"))
            self._events.write_event(Event(wall_time=at, **event))


class Wandb(Tracker):
    """An offline run in `wandb` under a run's folder; an older one is replaced, since nothing can be removed
    from it. Sending it with `wandb sync` is the user's. Raises ConfigError when wandb is not installed."""

    lasting: ClassVar[bool] = False

    def __init__(self, run_folder: Path, run_name: str) -> None:
        # wandb reports its errors to its makers unless this is set before the import.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        try:
            import wandb
        except ModuleNotFoundError as error:
            raise ConfigError(
                "metrics: wandb is not installed: pip install wandb, or take it out of metrics"
            ) from error
        if (run_folder / "wandb").exists():
            shutil.rmtree(run_folder / "wandb")
        settings = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True)
        settings.x_disable_stats = True  # A thread would collect statistics of the machine.
        self._run = wandb.init(
            mode="offline", dir=str(run_folder), project="erl-pipeline", name=run_name, settings=settings
        )
        # wandb's own steps can only increase, but a damaged artifact is made again out of order.
        self._run.define_metric("*", step_metric="iteration")

    def log(self, step: int, numbers: Mapping[str, float], at: datetime) -> None:
        self._run.log({"iteration": step, **numbers})

    def warn(self, warning: RunWarning) -> None:
        self._run.summary[f"warnings/{warning.kind}"] = warning.sentence

    def close(self) -> None:
        self._run.finish()


class Mlflow(Tracker):
    """One MLflow run for one run, found again by a tag; on the server or file that `MLFLOW_TRACKING_URI`
    names, else in `mlflow.db` under the run's folder.

    MLflow cannot remove points (new ones that differ appear beside the old), but stores points with equal
    name, step, time and value once, so that what is logged again after a kill changes nothing there. Its
    parameters cannot change either: settings with which a later start continues become one tag. Raises
    ConfigError when MLflow is not installed.
    """

    def __init__(self, run_folder: Path, run: Run, store_uri: str, settings: BaseModel) -> None:
        for name, value in _MLFLOW_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        try:
            from mlflow import MlflowClient, get_tracking_uri, is_tracking_uri_set
        except ModuleNotFoundError as error:
            raise ConfigError(
                "metrics: mlflow is not installed: pip install mlflow-skinny, or take it out of metrics"
            ) from error
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # It logs each database table that it creates.
        self._run, self._settings = run, dict(_flat(settings))
        self._tags = {"erl_pipeline.store": store_uri, "erl_pipeline.code_version": code_version()}
        artifacts, uri = None, get_tracking_uri()
        if not is_tracking_uri_set():
            with store_errors("write", run_folder):
                run_folder.mkdir(parents=True, exist_ok=True)
            folder = run_folder.resolve()
            # Nothing is stored there. Without it, MLflow records a folder below the current directory.
            artifacts, uri = (folder / "mlflow-artifacts").as_uri(), f"sqlite:///{folder / 'mlflow.db'}"
        self._place = _without_credentials(uri)
        self._waiting: list[Metric] = []
        self._warnings: dict[str, str] = {}
        self._mlflow_run = ""
        with self._errors():
            self._client = MlflowClient(tracking_uri=uri)
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "erl-pipeline"
            found = self._client.get_experiment_by_name(name)
            if found is None:
                self._experiment = self._client.create_experiment(name, artifact_location=artifacts)
            else:
                self._experiment = found.experiment_id

    def log(self, step: int, numbers: Mapping[str, float], at: datetime) -> None:
        from mlflow.entities import Metric

        milliseconds = int(at.timestamp() * 1000)
        self._waiting += [Metric(name, value, milliseconds, step) for name, value in numbers.items()]

    def warn(self, warning: RunWarning) -> None:
        self._warnings[f"erl_pipeline.warning.{warning.kind}"] = warning.sentence

    def flush(self, mark: str = "") -> None:
        with self._errors():
            for some in _parts(self._waiting, _MOST_METRICS):
                self._client.log_batch(self._started(), metrics=some)
            self._waiting = []
            # A warning may come before the first ledger entry, without which there is no MLflow run.
            if self._warnings and self._run.recorded():
                for name, sentence in self._warnings.items():
                    self._client.set_tag(self._started(), name, sentence)
                self._warnings = {}
            if mark:
                self._client.set_tag(self._started(), _MARK_TAG, mark)

    def mark(self) -> str:
        with self._errors():
            found = self._find() if self._run.recorded() else None
        return "" if found is None else str(found.data.tags.get(_MARK_TAG, ""))

    def close(self) -> None:
        """Send what is left and mark the MLflow run as ended; the next start opens it again."""
        self.flush()
        if self._mlflow_run:
            with self._errors():
                self._client.set_terminated(self._mlflow_run)

    def _find(self) -> Any:
        """The MLflow run of this run, whose identity is its name and the time of its first ledger entry."""
        identity = digest([self._run.name, self._run.recorded()[0].recorded_at.isoformat()])
        self._tags[_IDENTITY_TAG] = identity
        found = self._client.search_runs([self._experiment], f"tags.`{_IDENTITY_TAG}` = '{identity}'")
        return found[0] if found else None

    def _started(self) -> str:
        """The MLflow run's id. It is begun when there is something to send: its identity needs an entry."""
        from mlflow.entities import Param

        if not self._mlflow_run:
            run = self._find()
            if run is None:
                run = self._client.create_run(self._experiment, run_name=self._run.name, tags=self._tags)
                for some in _parts(list(self._settings.items()), _MOST_PARAMETERS):
                    self._client.log_batch(run.info.run_id, params=[Param(*each) for each in some])
            else:
                self._client.update_run(run.info.run_id, status="RUNNING")
                known = run.data.params
                changed = [f"{name}={to}" for name, to in self._settings.items() if known.get(name) != to]
                for name, value in {**self._tags, "erl_pipeline.continued_with": ", ".join(changed)}.items():
                    self._client.set_tag(run.info.run_id, name, value)
            self._mlflow_run = run.info.run_id
        return self._mlflow_run

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (MlflowException, SQLAlchemyError) as error:
            # Closing must not wait for MLflow again; the next start writes what is missing.
            self._waiting, self._warnings, self._mlflow_run = [], {}, ""
            reason = _without_credentials(str(error).strip().splitlines()[0].rstrip("."))
            raise StoreError(
                f"metrics: MLflow at {self._place} failed: {reason}. Check MLFLOW_TRACKING_URI and what it "
                "names, or take mlflow out of metrics; then run the same command again."
            ) from error


def _parts(values: list[Any], most: int) -> list[list[Any]]:
    return [values[place : place + most] for place in range(0, len(values), most)]


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
