"""Names by which stages give artifacts to each other: inputs of a stage, keys of a run's state, files.

It imports no stage and no engine, so that whoever wants a name does not depend on what makes the bytes.
"""

from collections.abc import Iterator
from pathlib import Path

from storage.artifacts.artifact import Artifact
from storage.artifacts.store import ArtifactStore
from storage.tables.sequences import FURTHER_SEQUENCES

TASKS = "tasks"
"""The input of a stage that plays: task sets, or tasks drawn from them."""

MEMORY = "memory"
"""The input of a stage that searches or changes a memory; also the memory's key in a run's state."""

ROLLOUTS = "rollouts"
"""The input of a stage that reads the episodes of an iteration."""

GENERATED = "generate_rollouts"
"""The stage that lists the shards of an iteration's episodes."""

TRAINING, HELD_OUT, WEIGHTS = "training.jsonl", "held_out.jsonl", "weights.json"
"""Files of a task set. A drawn set has the first alone."""

TRAJECTORIES = "trajectories.parquet"
"""The file of a shard of rollouts."""

NOTE_TRIALS = "note_trials.parquet"
"""The file with what trials of new notes showed."""

AGENT_CALLS = "agent_calls.parquet"
"""The file of a shard with the calls that agents made; a shard without agents has no such file."""


def shards(rollouts: Artifact, store: ArtifactStore) -> list[Artifact]:
    """The shards of an iteration's rollouts, in their order."""
    return [store.open(artifact_id) for _, artifact_id in sorted(rollouts.manifest.inputs.items())]


def further_sequence_files(rollouts: Artifact, store: ArtifactStore) -> list[Path]:
    """The files of an iteration's further sequences, in the order of the shards; each verified."""
    return [
        shard.path(FURTHER_SEQUENCES)
        for shard in shards(rollouts, store)
        if any(file.path == FURTHER_SEQUENCES for file in shard.manifest.files)
    ]


def trajectory_files(rollouts: Artifact, store: ArtifactStore) -> list[Path]:
    """The Parquet files of an iteration's rollouts, in the order of their shards; each verified."""
    return [shard.path(TRAJECTORIES) for shard in shards(rollouts, store)]


def chain(store: ArtifactStore, newest: Artifact | None, name: str) -> Iterator[Artifact]:
    """An artifact and those before it, the newest first; each names the previous one as its input `name`."""
    while newest is not None:
        yield newest
        before = newest.manifest.inputs.get(name)
        newest = None if before is None else store.open(before)
