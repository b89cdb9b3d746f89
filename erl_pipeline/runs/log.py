"""The log of a run: what its driver did, warned of and failed with, in `run.log` beside the ledger."""

import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import BinaryIO, cast

from erl_pipeline.plan.stage import Listener, StageOutcome
from storage.errors import Interrupted, PipelineError
from storage.filesystem import open_root, open_to_write

RUN_LOG = "run.log"
_MOST_BYTES = 4_000_000
_KEPT_FILES = 2
_WAITING_SECONDS = 60.0
"""Seconds of waiting between two lines about it."""


class LogFile(RotatingFileHandler):
    """A file, never a link to another one. One of 4 MB is put aside, and two such files are kept. That it
    takes no more lines stops no run: a full disk does so at the next artifact, with a message.

    Raises StoreError where the file is a link.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=_MOST_BYTES, backupCount=_KEPT_FILES)

    def _open(self) -> TextIOWrapper:
        return TextIOWrapper(cast(BinaryIO, open_to_write(Path(self.baseFilename), "ab")), encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:
        pass


class LoggedListener(Listener):
    """Writes what stages do into a log, and passes it on."""

    def __init__(self, logger: logging.Logger, listener: Listener) -> None:
        self._logger, self._listener = logger, listener
        self._told: dict[str, float] = {}
        self._reused = 0

    def stage_started(self, title: str) -> None:
        """The computation of a stage has begun."""
        self._logger.debug("%s begins", title)
        self._listener.stage_started(title)

    def counting(self, title: str, total: int, unit: str) -> None:
        """Only passed on."""
        self._listener.counting(title, total, unit)

    def advanced(self, title: str, amount: int, numbers: dict[str, float]) -> None:
        """Only passed on."""
        self._listener.advanced(title, amount, numbers)

    def waiting(self, title: str, what: str, seconds: float, detail: str) -> None:
        """A line is written when waiting begins, and then each minute."""
        told = self._told.get(title)
        if told is None or not 0 <= seconds - told < _WAITING_SECONDS:
            self._told[title] = seconds
            self._logger.info("%s waits %.0f s for %s: %s", title, seconds, what, detail)
        self._listener.waiting(title, what, seconds, detail)

    def stage_finished(self, title: str, outcome: StageOutcome) -> None:
        """The artifact is committed and recorded."""
        self._told.pop(title, None)
        if outcome.reused:  # A long run that goes on would fill its log with these.
            self._reused += 1
        else:
            self.tell_reused()
            self._logger.info("%s in %.1f s: artifact %s", title, outcome.seconds, outcome.artifact_id[:12])
        self._listener.stage_finished(title, outcome)

    def tell_reused(self) -> None:
        """Write down how many artifacts were reused since the last that was not."""
        if self._reused:
            self._logger.info("%d artifacts reused", self._reused)
            self._reused = 0

    def warn(self, message: str) -> None:
        """Something that a user should know."""
        self._logger.warning("%s", message)
        self._listener.warn(message)


def log_file(store_uri: str, run_name: str, name: str = RUN_LOG) -> Path:
    """A log file of a run on this machine. In an object store's run each machine that worked on it has its
    own."""
    return open_root(store_uri).scratch / "runs" / run_name / name


@contextmanager
def logged(store_uri: str, run_name: str, listener: Listener) -> Iterator[Listener]:
    """Gives a listener: what it is told within the block is written into the run's log, and so is the error
    that ends the block. The run has to be locked, since one process writes a log at a time.

    Raises StoreError where the log is a link.
    """
    handler = LogFile(log_file(store_uri, run_name))
    formatter = logging.Formatter("%(asctime)sZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    # Not one of `logging.getLogger`, which would live as long as the process and tell the root logger too.
    logger = logging.Logger(f"run {run_name}", logging.DEBUG)
    logger.addHandler(handler)
    try:
        logger.info("process %d on %s works on run %s", os.getpid(), socket.gethostname(), run_name)
        passing_on = LoggedListener(logger, listener)
        yield passing_on
        passing_on.tell_reused()
        logger.info("the work ended")
    except Interrupted:
        logger.info("the work was stopped")
        raise
    except PipelineError as error:
        logger.error("%s", error)
        raise
    except BaseException as error:
        logger.exception("%s", type(error).__name__)
        raise
    finally:
        # It writes what a full disk did not take before; the error that ends the work says more.
        with suppress(OSError):
            handler.close()
