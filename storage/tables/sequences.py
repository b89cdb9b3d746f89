"""Which files of an artifact hold attempts and texts, one row for each, and which the further token sequences
of agents' attempts."""

from collections.abc import Iterable
from pathlib import Path

from storage.artifacts.artifact import Artifact

FURTHER_SEQUENCES = "further_sequences.parquet"
"""The file of a shard with the token sequences of agents' attempts beside their first ones, in the form of
trajectories; the parent of each is the first one. A shard without such sequences has no such file."""


def attempt_files(artifacts: Iterable[Artifact]) -> list[Path]:
    """The Parquet files of trajectories, without further sequences: whoever counts attempts or their rewards
    must not count an attempt once for each of its sequences. Each file is verified; of pruned ones there are
    those with the columns that were kept."""
    return [
        artifact.rows_path(entry.path)
        for artifact in artifacts
        for entry in artifact.manifest.tables("trajectories")
        if entry.path != FURTHER_SEQUENCES
    ]


def further_files(artifacts: Iterable[Artifact]) -> list[Path]:
    """The files of further sequences; verified and pruned ones as in `attempt_files`."""
    return [
        artifact.rows_path(FURTHER_SEQUENCES)
        for artifact in artifacts
        if any(entry.path == FURTHER_SEQUENCES for entry in artifact.manifest.files)
    ]
