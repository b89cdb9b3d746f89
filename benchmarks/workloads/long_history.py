"""A long run, written with the store's own writers and layout, without any sampling or training.

Each iteration has seven artifacts: a shard of rollouts, the rollouts, memory, two checkpoints, a distillation
set, an evaluation. Tokens and texts are arbitrary; ids, links, rewards and sizes are like those of a run.
With `Readable` the run also has what pages show.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storage.artifacts.recipe import Recipe, digest
from storage.artifacts.store import ArtifactStore
from storage.memory.entries import MEMORY
from storage.runs.run import Run, RunStore
from storage.tables.parquet import write_rows
from storage.tables.training import (
    REINFORCEMENT,
    SFT,
    TRAINING_RECORD_FILE,
    TRAINING_RECORD_SCHEMA,
    write_training_record,
)
from storage.tables.trajectories import TRAJECTORIES
from tests.stage_versions import find_stages

RUN = "history"
TASKS, TASKS_APART = 4096, 61
FIRST_TASK = f"task-{TASKS_APART:05d}"
"""A task that the first iteration has even if it has few rows."""
MEMORY_ENTRIES, SFT_ROWS, EVALUATION_ROWS = 40, 40, 64
PROMPT_TOKENS, RESPONSE_TOKENS = 48, 16
VECTOR = 384
KINDS = {stage.name: stage.output for stage in find_stages(["erl_pipeline.stages"])}

WORDS = [
    f"{first}{second}" for first in "bdfgklmnprst" for second in ("ack", "ell", "ift", "oom", "und", "ay")
]
LESSON_WORDS, ANSWER_WORDS = 12, 24


@dataclass(frozen=True)
class Readable:
    """What makes a history readable on pages: the settings of a run, training records, a lesson of 12 words
    in each reflection, and answers of 24 words. `payload` is the payload of every task."""

    settings: Mapping[str, Any]
    embedding_model: str
    """The model named as the source of the arbitrary vectors, so that the memory can be searched with it."""
    payload: Mapping[str, Any]


def build(store_uri: str, iterations: int, rows: int, readable: Readable | None = None) -> None:
    """Write a history, unless the store has it."""
    runs = RunStore(store_uri)
    if RUN in runs.list():
        return
    run = runs.create(RUN, {"rows": rows} if readable is None else dict(readable.settings))
    history = History(ArtifactStore(store_uri), run, rows, 0, readable)
    started = time.perf_counter()
    for iteration in range(1, iterations + 1):
        history.write(iteration)
        if iteration % 100 == 0:
            print(f"{iteration} iterations written, {time.perf_counter() - started:.0f} s", flush=True)


class History:
    """Writes iterations one after the other, as training would."""

    def __init__(
        self, store: ArtifactStore, run: Run, rows: int, start: int, readable: Readable | None = None
    ) -> None:
        self.store = store
        self.run = run
        self.rows = rows
        self.readable = readable
        self.random = np.random.default_rng(start)
        self.checkpoint = self._commit("bootstrap", None, {}, self._weights)
        self.memory = ""
        self.entries: list[str] = []

    def write(self, iteration: int) -> None:
        """Write the seven artifacts of an iteration."""
        policy, memory = self.checkpoint, self.memory
        inputs = {"checkpoint": policy} | ({"memory": memory} if memory else {})
        recipe = self._recipe("rollout_shard", iteration, inputs)
        rows = list(self._trajectories(recipe.artifact_id, iteration, policy, memory))
        shard = self._commit(
            "rollout_shard",
            iteration,
            inputs,
            lambda folder: write_rows(folder / "trajectories.parquet", rows, TRAJECTORIES),
            policy,
            memory,
        )
        rollouts = self._commit(
            "generate_rollouts", iteration, {"shard-0000": shard}, _nothing, policy, memory
        )
        reflections = [row for row in rows if row["role"] == "reflection"][:MEMORY_ENTRIES]
        inputs = {"rollouts": rollouts} | ({"memory": memory} if memory else {})
        version = self._recipe("index_memory", iteration, inputs).artifact_id
        entries = [self._entry(row, version) for row in reflections]
        self.memory = self._commit(
            "index_memory",
            iteration,
            inputs,
            lambda folder: write_rows(folder / "entries.parquet", entries, MEMORY),
            None,
            version,
        )
        self.entries = [entry["entry_id"] for entry in entries]
        inputs = {"checkpoint": policy, "rollouts": rollouts}
        updated = self._policy("update_policy", iteration, inputs, rows if self.readable else ())
        seconds = [row for row in rows if row["role"] == "second_attempt"][:SFT_ROWS]
        dataset = self._commit(
            "build_distillation",
            iteration,
            {"rollouts": rollouts},
            lambda folder: write_rows(folder / "sft.parquet", map(self._sft_row, seconds), SFT),
        )
        self.checkpoint = self._policy("fine_tune", iteration, {"checkpoint": updated, "dataset": dataset})
        inputs = {"checkpoint": self.checkpoint}
        # An evaluation repeats rows of the rollouts, with new ids and as held-out tasks.
        scored = self._recipe("evaluate", iteration, inputs).artifact_id
        attempts = [
            {**row, "trajectory_id": digest([scored, number]), "task_id": f"held-out-{number:05d}"}
            for number, row in enumerate(rows[:EVALUATION_ROWS])
        ]
        self._commit(
            "evaluate",
            iteration,
            inputs,
            lambda folder: write_rows(folder / "evaluation.parquet", attempts, TRAJECTORIES),
            self.checkpoint,
        )

    def _trajectories(self, shard: str, iteration: int, policy: str, memory: str) -> Iterator[dict[str, Any]]:
        """Half of the rows are first attempts; every second one gets a reflection and a second attempt."""
        tokens = self.random.integers(0, 1000, (self.rows, PROMPT_TOKENS + RESPONSE_TOKENS)).astype(np.int32)
        logprobs = -self.random.exponential(0.7, (self.rows, RESPONSE_TOKENS)).astype(np.float32)
        rewards = self.random.integers(0, 2, self.rows).tolist()
        roles = ("first_attempt", "first_attempt", "reflection", "second_attempt")
        first = reflection = ""
        for number in range(self.rows):
            role = roles[number % 4]
            identifier = digest([shard, number])
            saw = (
                [self.entries[number // 4 % len(self.entries)]]
                if role == "reflection" and self.entries
                else []
            )
            parent = {"reflection": first, "second_attempt": reflection}.get(role)
            task = f"task-{(iteration * TASKS_APART + number // 4) % TASKS:05d}"
            row = {
                "trajectory_id": identifier,
                "episode_id": digest([shard, "episode", number // 4]),
                "parent_trajectory_id": parent,
                "iteration": iteration,
                "task_id": task,
                "task_type": "lake-4x4",
                "environment": "frozen_lake",
                "role": role,
                "revision_index": 0,
                "sample_index": number % 4,
                "group_id": f"{iteration}/{task}/{role}/0",
                "subgroup": None,
                "prompt_token_ids": tokens[number, :PROMPT_TOKENS],
                "response_token_ids": tokens[number, PROMPT_TOKENS:],
                "response_mask": np.ones(RESPONSE_TOKENS, dtype=np.int8),
                "behaviour_logprobs": logprobs[number],
                "temperature": 1.0,
                "policy_version": policy,
                "tokenizer_digest": "words",
                "reward": float(rewards[number]),
                "success": bool(rewards[number]),
                "finish_reason": "stop",
                "truncated": False,
                "feedback": "fell" if not rewards[number] else "",
                "messages": f'[{{"role": "user", "content": "{task}"}}]',
                "metrics": "{}",
                "text": f"go {number % 7}" if role == "reflection" else None,
                "memory_version": memory if role == "reflection" else "",
                "memory_entry_ids": saw,
                "seed": number,
                "task_payload": "{}",
                "turn_rewards": None,
            }
            yield row if self.readable is None else {**row, **self._texts(role, task, self.readable)}
            first = identifier if role == "first_attempt" else first
            reflection = identifier if role == "reflection" else reflection

    def _texts(self, role: str, task: str, readable: Readable) -> dict[str, Any]:
        answer = self._words(LESSON_WORDS if role == "reflection" else ANSWER_WORDS)
        turns = [{"role": "user", "content": task}, {"role": "assistant", "content": answer}]
        return {
            "messages": json.dumps(turns),
            "task_payload": json.dumps(readable.payload),
            "turn_rewards": None,
            "text": answer if role == "reflection" else None,
        }

    def _words(self, count: int) -> str:
        return " ".join(WORDS[word] for word in self.random.integers(0, len(WORDS), count))

    def _entry(self, row: dict[str, Any], version: str) -> dict[str, Any]:
        given = {
            "entry_id": f"m-{row['trajectory_id']}",
            "kind": "reflection",
            "text": row["text"],
            "task_text": row["task_id"],
            "key_text": row["task_id"],
            "vector": self.random.standard_normal(VECTOR).astype(np.float32),
            "embedding_model": "arbitrary" if self.readable is None else self.readable.embedding_model,
            "support": 1,
            "credit": 0.0,
            "credit_count": 0,
            "retrievals": 0,
            "source_trajectory_id": row["trajectory_id"],
            "last_iteration": row["iteration"],
            "operation": "add",
            "parent_entry_ids": row["memory_entry_ids"],
            "memory_version": version,
        }
        return {name: given.get(name, row.get(name)) for name in MEMORY.schema.names}

    @staticmethod
    def _sft_row(row: dict[str, Any]) -> dict[str, Any]:
        given = {
            "sft_row_id": f"s-{row['trajectory_id']}",
            "prompt": [{"role": "user", "content": row["task_id"]}],
            "completion": [{"role": "assistant", "content": "go"}],
            "input_token_ids": np.concatenate([row["prompt_token_ids"], row["response_token_ids"]]),
            "loss_mask": [0] * PROMPT_TOKENS + [1] * RESPONSE_TOKENS,
            "role": "distilled",
            "reflection_trajectory_id": row["parent_trajectory_id"],
            "first_trajectory_id": row["trajectory_id"],
            "weight": 1.0,
        }
        return {name: given.get(name, row.get(name)) for name in SFT.schema.names}

    def _policy(
        self, stage: str, iteration: int, inputs: dict[str, str], trained: Sequence[dict[str, Any]] = ()
    ) -> str:
        """Commit a checkpoint; with a training record if rows are given on which it was trained."""

        def write(folder: Path) -> None:
            self._weights(folder)
            if trained:
                write_training_record(folder / TRAINING_RECORD_FILE, map(self._record, trained))

        version = self._recipe(stage, iteration, inputs).artifact_id
        return self._commit(stage, iteration, inputs, write, version)

    def _record(self, row: dict[str, Any]) -> dict[str, Any]:
        given = {
            "sft_row_id": None,
            "kind": REINFORCEMENT,
            "advantage": row["reward"] - 0.5,
            "weight": 1.0,
            "not_trained": None if row["reward"] else "no_advantage",
            "steps": 1,
            "trained_tokens": RESPONSE_TOKENS,
        }
        measured = dict.fromkeys(("mean_ratio", "clipped_share", "mismatch", "entropy", "loss"), 0.25)
        return {name: (given | measured).get(name, row.get(name)) for name in TRAINING_RECORD_SCHEMA.names}

    def _weights(self, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(self.random.bytes(4096))

    def _recipe(self, stage: str, iteration: int | None, inputs: dict[str, str]) -> Recipe:
        return Recipe(stage, 1, {"iteration": iteration}, inputs, 0, kind=KINDS[stage])

    def _commit(
        self,
        stage: str,
        iteration: int | None,
        inputs: dict[str, str],
        write: Callable[[Path], object],
        policy: str | None = None,
        memory: str | None = None,
    ) -> str:
        recipe = self._recipe(stage, iteration, inputs)
        with self.store.create(recipe, run=self.run.name, iteration=iteration) as staging:
            write(staging.path)
            staging.commit(
                counters={"generated_tokens": 1},
                metrics={"greedy_success": 0.5, "greedy_success_low": 0.4, "greedy_success_high": 0.6},
                policy_version=policy,
                memory_version=memory or None,
            )
        key = "0000" if stage == "rollout_shard" else ""
        self.run.record(
            iteration, stage, recipe.artifact_id, kind=recipe.kind, key=key, reused=False, seconds=0.1
        )
        return recipe.artifact_id


def _nothing(folder: Path) -> None:
    return
