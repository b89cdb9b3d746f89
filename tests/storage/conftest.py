"""Examples that tests of storage share: trajectories, memory entries and a small committed run."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import Artifact, ArtifactStore
from storage.filesystem import open_root
from storage.memory.entries import Embedder, MemoryEntry, write_delta
from storage.runs.run import Run, RunStore
from storage.tables.training import SftRow, write_sft_rows
from storage.tables.trajectories import Trajectory, write_trajectories
from tests.embedders import WordEmbedder

FIRST = Trajectory(
    trajectory_id="first",
    episode_id="episode",
    parent_trajectory_id=None,
    iteration=1,
    task_id="task",
    task_type="lake-4x4",
    environment="frozen_lake",
    role="first_attempt",
    revision_index=0,
    sample_index=0,
    group_id="1/task/first_attempt/0",
    subgroup=None,
    prompt_token_ids=(5, 6, 7),
    response_token_ids=(8, 9, 10),
    response_mask=(1, 0, 1),
    behaviour_logprobs=(-0.5, 0.0, -2.25),
    temperature=1.0,
    policy_version="",
    tokenizer_digest="words",
    reward=0.0,
    success=False,
    finish_reason="done",
    truncated=False,
    feedback="fell into B",
    messages=json.dumps([{"role": "user", "content": "go"}, {"role": "assistant", "content": "left"}]),
    memory_version="",
    memory_entry_ids=(),
    seed=11,
    task_payload='{"board":["AB"]}',
)


def an_entry(number: int, key_text: str = "a lake", **changes: Any) -> MemoryEntry:
    entry = MemoryEntry(
        entry_id=f"m-{number:03d}",
        kind="reflection",
        text=f"reflection {number}",
        task_type="lake-4x4",
        task_text="go",
        feedback="fell into B",
        key_text=key_text,
        source_trajectory_id=f"t-{number:03d}",
        iteration=1,
        last_iteration=1,
        policy_version="policy",
        parent_entry_ids=(),
        memory_version="version",
    )
    return replace(entry, **changes)


@dataclass(frozen=True)
class TinyRun:
    """One iteration, as artifact ids: a checkpoint, a shard with one episode, memory and dataset."""

    store: ArtifactStore
    run: Run
    checkpoint: str
    shard: str
    rollouts: str
    memory: str
    dataset: str


@pytest.fixture(scope="session")
def embedder() -> Embedder:
    return WordEmbedder()


@pytest.fixture
def trajectory() -> Trajectory:
    return FIRST


@pytest.fixture
def entry() -> Callable[..., MemoryEntry]:
    return an_entry


@pytest.fixture
def object_store_uri() -> Iterator[str]:
    uri = f"memory://{uuid.uuid4().hex}"
    yield uri
    shutil.rmtree(open_root(uri).scratch, ignore_errors=True)


@pytest.fixture(params=["local", "object store"])
def store_uri(request: pytest.FixtureRequest, tmp_path: Path, object_store_uri: str) -> str:
    return str(tmp_path / "store") if request.param == "local" else object_store_uri


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(str(tmp_path / "store"))


@pytest.fixture
def recipe() -> Recipe:
    return Recipe("evaluate", 1, {"samples": 2}, {}, seed=3, kind="evaluation")


@pytest.fixture
def commit_memory(store: ArtifactStore, embedder: Embedder) -> Callable[..., str]:
    def commit(entries: Sequence[MemoryEntry], parent: str | None = None) -> str:
        inputs = {"memory": parent} if parent else {}
        ids = [entry.entry_id for entry in entries]
        recipe = Recipe("index_memory", 1, {"ids": ids}, inputs, 0, kind="memory")
        with store.create(recipe, run="run", iteration=1) as staging:
            write_delta(staging.path / "entries.parquet", entries, embedder)
            return staging.commit(memory_version=recipe.artifact_id).manifest.artifact_id

    return commit


@pytest.fixture
def tiny_run(store: ArtifactStore, embedder: Embedder) -> TinyRun:
    run = RunStore(store.uri).create("run", {"seed": 0})

    def commit(recipe: Recipe, write: Callable[[Path], object]) -> str:
        with store.create(recipe, run="run", iteration=1) as staging:
            write(staging.path)
            artifact: Artifact = staging.commit()
        run.record(1, recipe.stage, recipe.artifact_id, kind=recipe.kind, reused=False, seconds=1.0)
        return artifact.manifest.artifact_id

    checkpoint = commit(
        Recipe("bootstrap", 1, {}, {}, 0, kind="checkpoint"),
        lambda folder: (folder / "weights").write_bytes(b"weights"),
    )
    first = replace(FIRST, policy_version=checkpoint)
    reflection = replace(
        first,
        trajectory_id="reflection",
        role="reflection",
        parent_trajectory_id="first",
        success=True,
        reward=1.0,
        text="go right",
        memory_version="empty",
    )
    second = replace(
        first,
        trajectory_id="second",
        role="second_attempt",
        parent_trajectory_id="reflection",
        success=True,
        reward=1.0,
        feedback="",
    )
    shard = commit(
        Recipe("rollout_shard", 1, {}, {"checkpoint": checkpoint}, 0, kind="trajectories"),
        lambda folder: write_trajectories(folder / "trajectories.parquet", [first, reflection, second]),
    )
    rollouts = commit(
        Recipe("generate_rollouts", 1, {}, {"shard-0000": shard}, 0, kind="rollouts"), lambda _: None
    )
    entry = an_entry(1, source_trajectory_id="reflection", policy_version=checkpoint)
    memory = commit(
        Recipe("index_memory", 1, {}, {"rollouts": rollouts}, 0, kind="memory"),
        lambda folder: write_delta(folder / "entries.parquet", [entry], embedder),
    )
    row = SftRow(
        sft_row_id="s-second",
        prompt=({"role": "user", "content": "go"},),
        completion=({"role": "assistant", "content": "right"},),
        input_token_ids=(5, 6, 7, 8),
        loss_mask=(0, 0, 0, 1),
        trajectory_id="second",
        role="distilled",
        reflection_trajectory_id="reflection",
        first_trajectory_id="first",
        memory_entry_ids=(),
        task_id="task",
        task_type="lake-4x4",
        episode_id="episode",
        iteration=1,
        policy_version=checkpoint,
        weight=1.0,
    )
    dataset = commit(
        Recipe("build_distillation", 1, {}, {"rollouts": rollouts}, 0, kind="sft_dataset"),
        lambda folder: write_sft_rows(folder / "sft.parquet", [row]),
    )
    return TinyRun(store, run, checkpoint, shard, rollouts, memory, dataset)
