"""A small history, written by hand, so that its lineage can be seen by reading it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.memory.entries import MEMORY
from storage.runs.run import Run, RunStore
from storage.tables.parquet import write_rows
from storage.tables.training import SFT
from storage.tables.trajectories import TRAJECTORIES
from tests.stage_records import KINDS

DIMENSIONS = 2
CONFIG = {
    "name": "base",
    "iterations": 2,
    "environment": {"type": "frozen_lake"},
    "policy": {"type": "tiny"},
}


@dataclass(frozen=True)
class History:
    """Two iterations of run `base`, and the first iteration of run `branch`, from the same rollouts.

    Iteration 1: `shard` has `first` -> `reflection` -> `second` of task `t1`; memory entry `m-1` holds the
    reflection, SFT row `s-second` the second attempt. Iteration 2: two shards, one with `first-2` ->
    `reflection-2`, which saw `m-1`, -> `second-2` of task `t2`, one with `first-3` of task `t1`; nothing
    succeeded, so memory and dataset get nothing new.
    """

    store: ArtifactStore
    runs: RunStore
    base: Run
    branch: Run
    ids: dict[str, str]
    """Artifact ids by short names: bootstrap, shard, rollouts, memory, update, dataset, tuned, scores; the
    same with `-2` for iteration 2 (`shard-2`, `shard-3`); `update-branch` for the other run."""


def write_history(store_uri: str) -> History:
    store, runs = ArtifactStore(store_uri), RunStore(store_uri)
    base, branch = runs.create("base", CONFIG), runs.create("branch", CONFIG)
    ids: dict[str, str] = {}

    def commit(
        name: str,
        stage: str,
        iteration: int | None,
        inputs: dict[str, str],
        write: Callable[[Path], object] = lambda folder: None,
        *,
        run: Run = base,
        policy: str | None = None,
        memory: str | None = None,
        key: str = "",
        **numbers: float,
    ) -> None:
        """`policy` and `memory` are names of artifacts; `self` is the artifact that is being committed."""
        used = {key: ids[value] for key, value in inputs.items()}
        recipe = Recipe(stage, 1, {"name": name}, used, 0, kind=KINDS[stage])
        ids[name] = ids["self"] = recipe.artifact_id
        with store.create(recipe, run=run.name, iteration=iteration) as staging:
            write(staging.path)
            staging.commit(
                metrics=numbers,
                policy_version=ids[policy] if policy else None,
                memory_version=ids[memory] if memory else None,
            )
        run.record(iteration, stage, recipe.artifact_id, kind=recipe.kind, key=key, reused=False, seconds=1.0)

    def rows(*given: dict[str, Any], name: str = "trajectories.parquet") -> Callable[[Path], object]:
        return lambda folder: write_rows(
            folder / name, [trajectory_row(**row) for row in given], TRAJECTORIES
        )

    def weights(folder: Path) -> None:
        (folder / "weights").write_bytes(b"weights")

    commit("bootstrap", "bootstrap", None, {}, weights)
    episode = (
        {"trajectory_id": "first", "role": "first_attempt"},
        {"trajectory_id": "reflection", "role": "reflection", "parent_trajectory_id": "first", "reward": 1.0},
        {
            "trajectory_id": "second",
            "role": "second_attempt",
            "parent_trajectory_id": "reflection",
            "reward": 1.0,
        },
    )
    policy: dict[str, object] = {"policy_version": ids["bootstrap"]}
    commit(
        "shard",
        "rollout_shard",
        1,
        {"checkpoint": "bootstrap"},
        rows(*({**row, **policy} for row in episode)),
        policy="bootstrap",
        key="0000",
    )
    commit("rollouts", "generate_rollouts", 1, {"shard-0000": "shard"}, policy="bootstrap")
    commit(
        "memory",
        "index_memory",
        1,
        {"rollouts": "rollouts"},
        lambda folder: write_rows(folder / "entries.parquet", [entry_row("m-1", "reflection")], MEMORY),
        memory="self",
    )
    commit(
        "update",
        "update_policy",
        1,
        {"checkpoint": "bootstrap", "rollouts": "rollouts"},
        weights,
        policy="self",
    )
    commit(
        "dataset",
        "build_distillation",
        1,
        {"rollouts": "rollouts"},
        lambda folder: write_rows(folder / "sft.parquet", [sft_row("s-second", "second")], SFT),
    )
    commit("tuned", "fine_tune", 1, {"checkpoint": "update", "dataset": "dataset"}, weights, policy="self")
    commit(
        "scores",
        "evaluate",
        1,
        {"checkpoint": "tuned"},
        rows({"trajectory_id": "held-out", "task_id": "h1"}, name="evaluation.parquet"),
        policy="tuned",
        greedy_success=0.25,
    )
    policy = {"policy_version": ids["tuned"], "iteration": 2}
    saw = {"memory_version": ids["memory"], "memory_entry_ids": ["m-1"]}
    commit(
        "shard-2",
        "rollout_shard",
        2,
        {"checkpoint": "tuned", "memory": "memory"},
        rows(
            {"trajectory_id": "first-2", "task_id": "t2", **policy},
            {
                "trajectory_id": "reflection-2",
                "role": "reflection",
                "parent_trajectory_id": "first-2",
                "task_id": "t2",
                **saw,
                **policy,
            },
            {
                "trajectory_id": "second-2",
                "role": "second_attempt",
                "parent_trajectory_id": "reflection-2",
                "task_id": "t2",
                **policy,
            },
        ),
        policy="tuned",
        memory="memory",
        key="0000",
    )
    commit(
        "shard-3",
        "rollout_shard",
        2,
        {"checkpoint": "tuned", "memory": "memory"},
        rows({"trajectory_id": "first-3", **policy}),
        policy="tuned",
        memory="memory",
        key="0001",
    )
    commit(
        "rollouts-2",
        "generate_rollouts",
        2,
        {"shard-0000": "shard-2", "shard-0001": "shard-3"},
        policy="tuned",
        memory="memory",
    )
    commit(
        "memory-2",
        "index_memory",
        2,
        {"rollouts": "rollouts-2", "memory": "memory"},
        lambda folder: write_rows(folder / "entries.parquet", [], MEMORY),
        memory="self",
    )
    commit(
        "update-2",
        "update_policy",
        2,
        {"checkpoint": "tuned", "rollouts": "rollouts-2"},
        weights,
        policy="self",
    )
    commit(
        "dataset-2",
        "build_distillation",
        2,
        {"rollouts": "rollouts-2"},
        lambda folder: write_rows(folder / "sft.parquet", [], SFT),
    )
    commit(
        "tuned-2", "fine_tune", 2, {"checkpoint": "update-2", "dataset": "dataset-2"}, weights, policy="self"
    )
    commit(
        "scores-2",
        "evaluate",
        2,
        {"checkpoint": "tuned-2"},
        rows({"trajectory_id": "held-out-2", "task_id": "h1", "iteration": 2}, name="evaluation.parquet"),
        policy="tuned-2",
        greedy_success=0.5,
    )
    shared: Sequence[tuple[int | None, str, str]] = (
        (None, "bootstrap", "bootstrap"),
        (1, "rollout_shard", "shard"),
        (1, "generate_rollouts", "rollouts"),
    )
    for iteration, stage, name in shared:
        branch.record(iteration, stage, ids[name], kind=KINDS[stage], reused=True, seconds=0.0)
    commit(
        "update-branch",
        "update_policy",
        1,
        {"checkpoint": "bootstrap", "rollouts": "rollouts"},
        weights,
        run=branch,
        policy="self",
    )
    del ids["self"]
    return History(store, runs, base, branch, ids)


def trajectory_row(**given: Any) -> dict[str, Any]:
    """Columns of a trajectory; values that are not given are those of a failed first attempt."""
    row = {
        "parent_trajectory_id": None,
        "episode_id": "episode",
        "iteration": 1,
        "task_id": "t1",
        "task_type": "lake-4x4",
        "environment": "frozen_lake",
        "role": "first_attempt",
        "revision_index": 0,
        "sample_index": 0,
        "group_id": "group",
        "subgroup": None,
        "prompt_token_ids": [1, 2],
        "response_token_ids": [3],
        "response_mask": [1],
        "behaviour_logprobs": [-0.5],
        "temperature": 1.0,
        "policy_version": "",
        "tokenizer_digest": "words",
        "reward": 0.0,
        "success": False,
        "finish_reason": "stop",
        "truncated": False,
        "feedback": "fell",
        "messages": "[]",
        "metrics": "{}",
        "text": None,
        "memory_version": "",
        "memory_entry_ids": [],
        "seed": 0,
        "task_payload": "{}",
        "turn_rewards": None,
        **given,
    }
    return {name: row[name] for name in TRAJECTORIES.schema.names}


def entry_row(entry_id: str, source: str) -> dict[str, Any]:
    """Columns of the memory entry that holds the reflection `source`."""
    row = {
        "entry_id": entry_id,
        "kind": "reflection",
        "text": "go right",
        "task_type": "lake-4x4",
        "task_text": "go",
        "feedback": "fell",
        "key_text": "go",
        "vector": [0.0] * DIMENSIONS,
        "embedding_model": "none",
        "support": 1,
        "credit": 0.0,
        "credit_count": 0,
        "retrievals": 0,
        "source_trajectory_id": source,
        "iteration": 1,
        "last_iteration": 1,
        "policy_version": "",
        "parent_entry_ids": [],
        "operation": "add",
        "memory_version": "",
    }
    return {name: row.get(name) for name in MEMORY.schema.names}


def sft_row(row_id: str, trajectory_id: str) -> dict[str, Any]:
    """Columns of the SFT row that was made from an attempt."""
    row = {
        "sft_row_id": row_id,
        "prompt": [{"role": "user", "content": "go"}],
        "completion": [{"role": "assistant", "content": "right"}],
        "input_token_ids": [1, 2, 3],
        "loss_mask": [0, 0, 1],
        "trajectory_id": trajectory_id,
        "role": "distilled",
        "reflection_trajectory_id": "reflection",
        "first_trajectory_id": "first",
        "memory_entry_ids": [],
        "task_id": "t1",
        "task_type": "lake-4x4",
        "episode_id": "episode",
        "iteration": 1,
        "policy_version": "",
        "weight": 1.0,
    }
    return {name: row.get(name) for name in SFT.schema.names}
