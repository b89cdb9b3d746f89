"""Small real runs: their configuration, and the artifacts that they committed."""

from __future__ import annotations

from pathlib import Path

from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.tables.trajectories import read_trajectories
from tests.command_line.invoke import SMALL

ROOT = Path(__file__).parents[2]


def write_config(folder: Path, iterations: int = 2, extra: str = "") -> Path:
    """A configuration whose run takes seconds."""
    path = folder / "small.yaml"
    path.write_text(small_config(iterations) + extra)
    return path


def small_config(iterations: int) -> str:
    """The same with another number of iterations."""
    return SMALL.replace("iterations: 2\n", f"iterations: {iterations}\n")


def artifact_hashes(store: Path | str, run: str = "small") -> dict[tuple[str, str], dict[str, str]]:
    """For each artifact of a run: its stage and id, and the sha256 of its files."""
    artifacts = ArtifactStore(str(store))
    hashes = {}
    for entry in RunStore(str(store)).open(run).stages():
        manifest = artifacts.open(entry.artifact_id).manifest
        hashes[manifest.stage, manifest.artifact_id] = {file.path: file.sha256 for file in manifest.files}
    return hashes


def trajectory_ids(store: Path, run: str = "small") -> list[str]:
    """Ids of all trajectories that a run's rollouts hold."""
    artifacts = ArtifactStore(str(store))
    entries = RunStore(str(store)).open(run).stages()
    shards = [entry.artifact_id for entry in entries if entry.kind == "trajectories"]
    files = [artifacts.open(shard).path("trajectories.parquet") for shard in shards]
    return [row.trajectory_id for row in read_trajectories(files)]
