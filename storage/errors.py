"""The errors a user can act on.

Every error that the project raises on purpose derives from `PipelineError`; the command line prints it as
one paragraph and exits with status 2. Programming errors are not wrapped: they propagate.
"""

from __future__ import annotations


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
