"""The errors a user can act on, and those of the operating system turned into them.

Every error that the project raises on purpose derives from `PipelineError`; the command line prints it as
one paragraph and exits with status 2. Programming errors are not wrapped: they propagate.
"""

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class PipelineError(Exception):
    """Base of all errors whose message is meant for the user."""


class ConfigError(PipelineError):
    """A setting is unknown, has the wrong type or contradicts another."""


class InputError(PipelineError):
    """Something given from outside (task file, checkpoint, command argument) cannot be used."""


class StoreError(PipelineError):
    """The store cannot be read or written."""


class DamagedArtifact(StoreError):
    """A committed artifact no longer holds the bytes its manifest names."""


class DamagedRecord(StoreError):
    """A file that describes a run, such as its settings or its ledger, is not as it was written."""


class PrunedFileError(StoreError):
    """Retention has pruned the requested file of an artifact.

    `fact` says what was removed, without advice.
    """

    def __init__(self, message: str, artifact_id: str = "", fact: str = "") -> None:
        super().__init__(message)
        self.artifact_id = artifact_id
        self.fact = fact


class StateNotKept(PrunedFileError):
    """A checkpoint was committed without the state of its optimizer, and nothing in this process has it."""


class NotRepeated(PipelineError):
    """A computation that was repeated did not give the bytes that are committed."""


class RunBusy(PipelineError):
    """Another process is working on this run."""


class Interrupted(Exception):
    """The run was asked to stop; what is committed stays, what is in flight is dropped.

    Not a `PipelineError`: there is nothing to mend.
    """


class TrainingDiverged(PipelineError):
    """A loss or gradient is no longer finite."""


class EngineError(PipelineError):
    """A generation engine failed, or serves another policy than the requested one."""


class EnvironmentFailed(PipelineError):
    """An environment failed in every episode, so that there is nothing to learn from."""


_ADVICE = {
    errno.EACCES: "you have no permission: choose another store or change its permissions",
    errno.EPERM: "you have no permission: choose another store or change its permissions",
    errno.EROFS: "the file system is read-only: choose another store",
    errno.ENOSPC: "the disk is full: free some space, then run the same command again",
    errno.EDQUOT: "the disk quota is used up: free some space, then run the same command again",
    errno.EIO: "the disk fails: see the system's log, then run the same command again",
    errno.EFBIG: "a file would be larger than is allowed: raise the limit, then run the same command again",
    errno.ENOTDIR: "a part of the path is a file: choose another store",
    errno.EEXIST: "a file is in the way: choose another store",
    errno.ENOENT: "it does not exist: create the folder or bucket, or correct the store's URI",
}
_DISK_FAULTS = frozenset({errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG})


@contextmanager
def store_errors(action: str, where: str | Path) -> Iterator[None]:
    """Turn the operating system's errors into a StoreError that says what to do."""
    try:
        yield
    except _remote_errors() as error:
        raise StoreError(
            f"cannot {action} {where}: {str(error).rstrip('.')}. Check the address "
            "(AWS_ENDPOINT_URL), the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) and the network."
        ) from error
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "check the store's path and that its disk works")
        if isinstance(error, PermissionError):
            advice = _ADVICE[errno.EACCES]
        elif isinstance(error, FileNotFoundError):
            advice = _ADVICE[errno.ENOENT]
        raise StoreError(f"cannot {action} {where}: {error.strerror or error}; {advice}.") from error


@contextmanager
def disk_errors(where: str | Path) -> Iterator[None]:
    """Turn any exception that comes from a full, failing or read-only disk into a StoreError.

    For work in which many libraries write. Libraries in Rust have their own exceptions, which hold the
    system's error number in their text. Every other exception passes unchanged.
    """
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        if told := re.search(r"\(os error (\d+)\)", str(error)):
            number = int(told[1])
        if number is None or number not in _DISK_FAULTS:
            raise
        raise StoreError(f"cannot write {where}: {os.strerror(number)}; {_ADVICE[number]}.") from error


def _remote_errors() -> tuple[type[Exception], ...]:
    """What s3fs raises besides OSError: botocore's own errors of credentials and connections."""
    botocore = sys.modules.get("botocore.exceptions")
    return () if botocore is None else (botocore.BotoCoreError, botocore.ClientError)
