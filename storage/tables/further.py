"""Where an agent's attempts have their further token sequences: beside the trajectories, in the same form."""

from collections.abc import Iterable
from pathlib import Path

FURTHER_SEQUENCES = "further_sequences.parquet"
"""The file of a shard with the token sequences of agents' attempts beside their first ones, in the form of
trajectories; the parent of each is the first one. A shard without such sequences has no such file."""


def first_sequences(paths: Iterable[Path]) -> list[Path]:
    """The files of trajectories in which each attempt is one row."""
    return [path for path in paths if path.name != FURTHER_SEQUENCES]
