"""What a long history costs: a store of 1,000,000 generated trajectories in 1,000 iterations.

Writes a run with the store's own writers and layout (seven artifacts an iteration: rollouts, their list,
memory, two checkpoints, a distillation set, an evaluation), and measures, each in fresh processes:

- reading the rewards of the last iteration,
- one lineage question over all rows, and all that one memory entry reached,
- planning a replay: all artifacts of an iteration, resolved from the ledger to whole manifests,
- the bookkeeping of one iteration (lock, plan, find, commit, ledger) after 10 iterations and after all.

    python benchmarks/history_growth.py --runs 5 --write

The tokens and texts are arbitrary; ids, links, rewards and sizes are those of a run. The store is made in a
temporary folder, about 0.5 GB, and removed; `--store` keeps it and takes it up again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from measurements import (
    Figures,
    as_markdown,
    as_text,
    describe_machine,
    machine_line,
    process_memory_and_cpu,
    run_alone,
    spread,
    write_results,
    write_section,
)

from storage.artifacts import ArtifactStore
from storage.lineage import ArtifactGraph, downstream
from storage.lineage.questions import policies_trained_on, rows_using_memory
from storage.lineage.rows import LineageRows
from storage.memory_entries import MEMORY
from storage.parquet import write_rows
from storage.recipe import Recipe, digest
from storage.runs import Run, RunStore
from storage.sft import SFT
from storage.trajectories import TRAJECTORIES, scan_trajectories

NAME = "history_growth"
RUN = "history"
TASKS = 4096
MEMORY_ENTRIES, SFT_ROWS, EVALUATION_ROWS = 40, 40, 64
PROMPT_TOKENS, RESPONSE_TOKENS = 48, 16
VECTOR = 384
BOOKKEEPING_STAGES = (
    "rollout_shard",
    "generate_rollouts",
    "index_memory",
    "update_policy",
    "build_distillation",
    "fine_tune",
    "evaluate",
)
BOOKKEEPING_REPEATS, BOOKKEEPING_RUNS = 20, 5
SHORT = 10
"""Iterations of the history that the long one is compared with."""
TITLES = {
    "last_rewards": "rewards of the last iteration",
    "rows_using_memory": "every row that used a memory entry",
    "policies_trained_on": "every policy that trained on a task",
    "downstream": "all that a memory entry reached (rows, policies, scores)",
    "replay_plan": "planning a replay of an iteration in the middle",
}


class History:
    """Writes iterations as training would, one after the other."""

    def __init__(self, store: ArtifactStore, run: Run, rows: int, start: int) -> None:
        self.store = store
        self.run = run
        self.rows = rows
        self.random = np.random.default_rng(start)
        self.checkpoint = self._commit("bootstrap", None, {}, self._weights)
        self.memory = ""
        self.entries: list[str] = []

    def write(self, iteration: int) -> None:
        """One iteration of seven artifacts."""
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
        updated = self._policy("update_policy", iteration, {"checkpoint": policy, "rollouts": rollouts})
        seconds = [row for row in rows if row["role"] == "second_attempt"][:SFT_ROWS]
        dataset = self._commit(
            "build_distillation",
            iteration,
            {"rollouts": rollouts},
            lambda folder: write_rows(folder / "sft.parquet", map(self._sft_row, seconds), SFT),
        )
        self.checkpoint = self._policy("fine_tune", iteration, {"checkpoint": updated, "dataset": dataset})
        inputs = {"checkpoint": self.checkpoint}
        # An evaluation repeats rows of the rollouts, under ids of their own and as held-out tasks.
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
        """Half first attempts; every second is reflected on and followed by a second attempt."""
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
            task = f"task-{(iteration * 61 + number // 4) % TASKS:05d}"
            yield {
                "trajectory_id": identifier,
                "episode_id": digest([shard, "episode", number // 4]),
                "parent_trajectory_id": parent,
                "iteration": iteration,
                "task_id": task,
                "task_type": "lake-4x4",
                "environment": "frozen_lake",
                "role": role,
                "attempt_index": number % 2,
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
                "reflection": f"go {number % 7}" if role == "reflection" else None,
                "memory_version": memory if role == "reflection" else "",
                "memory_entry_ids": saw,
                "seed": number,
                "environment_seed": 0,
                "task_payload": "{}",
            }
            first = identifier if role == "first_attempt" else first
            reflection = identifier if role == "reflection" else reflection

    def _entry(self, row: dict[str, Any], version: str) -> dict[str, Any]:
        given = {
            "entry_id": f"m-{row['trajectory_id']}",
            "kind": "reflection",
            "text": row["reflection"],
            "task_text": row["task_id"],
            "key_text": row["task_id"],
            "vector": self.random.standard_normal(VECTOR).astype(np.float32),
            "embedding_model": "arbitrary",
            "reward_before": 0.0,
            "reward_after": 1.0,
            "source_trajectory_id": row["trajectory_id"],
            "status": "active",
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
            "reflection_trajectory_id": row["parent_trajectory_id"],
            "first_trajectory_id": row["trajectory_id"],
            "weight": 1.0,
        }
        return {name: given.get(name, row.get(name)) for name in SFT.schema.names}

    def _policy(self, stage: str, iteration: int, inputs: dict[str, str]) -> str:
        version = self._recipe(stage, iteration, inputs).artifact_id
        return self._commit(stage, iteration, inputs, self._weights, version)

    def _weights(self, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(self.random.bytes(4096))

    def _recipe(self, stage: str, iteration: int | None, inputs: dict[str, str]) -> Recipe:
        return Recipe(stage, 1, {"iteration": iteration}, inputs, 0)

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
        self.run.record(iteration, stage, recipe.artifact_id, reused=False, seconds=0.1)
        return recipe.artifact_id


def _nothing(folder: Path) -> None:
    return


def bookkeeping(store_uri: str) -> Figures:
    """Median seconds that an iteration spends around its stages' own work, and what opening the run costs."""
    started = time.perf_counter()
    run = RunStore(store_uri).open(RUN)
    entries = run.stages()
    opened = time.perf_counter() - started
    store = ArtifactStore(store_uri)
    previous = entries[-1].artifact_id
    seconds = []
    for repeat in range(BOOKKEEPING_REPEATS):
        started = time.perf_counter()
        with run.lock():
            for stage in BOOKKEEPING_STAGES:
                recipe = Recipe(stage, 1, {"probe": repeat, "of": len(entries)}, {"checkpoint": previous}, 0)
                if store.find(recipe.artifact_id, stage) is not None:
                    raise RuntimeError("the probe was committed before; use a fresh store")
                with store.create(recipe, run=RUN, iteration=None) as staging:
                    (staging.path / "bytes").write_bytes(b"probe")
                    staging.commit()
                run.record(None, stage, recipe.artifact_id, key=recipe.artifact_id, reused=False, seconds=0.0)
        seconds.append(time.perf_counter() - started)
    return {"bookkeeping": statistics.median(seconds), "opening": opened, "entries": float(len(entries))}


def last_rewards(store: ArtifactStore, run: Run) -> int:
    iteration = max(entry.iteration or 0 for entry in run.stages())
    shards = [
        entry.artifact_id
        for entry in run.stages()
        if entry.iteration == iteration and entry.stage == "rollout_shard"
    ]
    files = [store.open(shard).path("trajectories.parquet") for shard in shards]
    return scan_trajectories(files).select(pl.col("reward")).collect().height


def replay_plan(store: ArtifactStore, run: Run) -> int:
    entries = run.stages()
    middle = max(entry.iteration or 0 for entry in entries) // 2
    plan = [entry for entry in entries if entry.iteration == middle]
    manifests = [store.find(entry.artifact_id, entry.stage) for entry in plan]
    return sum(manifest is not None for manifest in manifests)


def _some_entry(store: ArtifactStore, run: Run) -> str:
    """A memory entry from the middle of the history."""
    versions = [entry for entry in run.stages() if entry.stage == "index_memory"]
    file = store.open(versions[len(versions) // 2].artifact_id).path("entries.parquet")
    return str(pl.read_parquet(file, columns=["entry_id"])["entry_id"][0])


def ask(name: str, store_uri: str) -> Figures:
    """One question, from an unopened store to its answer; and the peak memory of this process."""
    if name == "bookkeeping":
        return bookkeeping(store_uri)
    entry = _some_entry(ArtifactStore(store_uri), RunStore(store_uri).open(RUN))
    started, cpu_before = time.perf_counter(), time.process_time()
    store, run = ArtifactStore(store_uri), RunStore(store_uri).open(RUN)
    if name == "last_rewards":
        answer = last_rewards(store, run)
    elif name == "replay_plan":
        answer = replay_plan(store, run)
    elif name == "downstream":
        answer = len(downstream(store, None, entry).things)
    else:
        manifests = list(store.list())
        rows = LineageRows(store, manifests)
        if name == "rows_using_memory":
            answer = rows_using_memory(rows, entry).height
        else:
            answer = policies_trained_on(rows, ArtifactGraph(manifests), "task-00100").height
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu_before
    figures = {"seconds": seconds, "cpu_seconds_asking": cpu, "answer": float(answer)}
    return figures | process_memory_and_cpu()


def build(store_uri: str, iterations: int, rows: int) -> None:
    """Write a history, unless it is there."""
    runs = RunStore(store_uri)
    if RUN in runs.list():
        return
    history = History(ArtifactStore(store_uri), runs.create(RUN, {"rows": rows}), rows, 0)
    started = time.perf_counter()
    for iteration in range(1, iterations + 1):
        history.write(iteration)
        if iteration % 100 == 0:
            print(f"{iteration} iterations written, {time.perf_counter() - started:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=1000, help="trajectories of an iteration")
    parser.add_argument("--runs", type=int, default=5, help="processes that ask each question")
    parser.add_argument("--store", help="a folder to write the history into, or where it is")
    parser.add_argument("--write", action="store_true", help="write the result into benchmarks/README.md")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--figures", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.contender:
        given.figures.write_text(json.dumps(ask(given.contender, given.store)))
        return
    machine = describe_machine(1, ["polars", "pyarrow", "pydantic"])
    folder = given.store or tempfile.mkdtemp(prefix="history-growth-")
    short, long = f"{folder}/short", f"{folder}/long"
    answers: dict[str, list[Figures]] = {name: [] for name in TITLES}
    around: dict[int, list[Figures]] = {SHORT: [], given.iterations: []}
    try:
        build(short, SHORT, given.rows)
        build(long, given.iterations, given.rows)
        size = sum(path.stat().st_size for path in Path(long).rglob("*") if path.is_file())
        for _ in range(max(BOOKKEEPING_RUNS, given.runs)):
            for iterations, store in ((SHORT, short), (given.iterations, long)):
                around[iterations].append(run_alone("bookkeeping", ["--store", store], __file__))
        for _ in range(given.runs):
            for name, found in answers.items():
                found.append(run_alone(name, ["--store", long], __file__))
    finally:
        if not given.store:
            shutil.rmtree(folder)
    _tell(given, machine, around, answers, size)


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _tell(
    given: argparse.Namespace,
    machine: dict[str, str | int | float],
    around: dict[int, list[Figures]],
    answers: dict[str, list[Figures]],
    size: int,
) -> None:
    questions = [
        [
            "question",
            f"seconds, {_runs(given.runs)}",
            "CPU seconds",
            "peak memory, MB",
            "things in the answer",
        ]
    ]
    for name, found in answers.items():
        seconds = spread([one["seconds"] for one in found])
        memory = max(one["peak_bytes"] for one in found) / 1e6
        told = f"{seconds.median:.2f} ({seconds.least:.2f} to {seconds.most:.2f})"
        cpu = statistics.median(one["cpu_seconds_asking"] for one in found)
        cells = [TITLES[name], told, f"{cpu:.2f}", f"{memory:,.0f}", f"{found[0]['answer']:,.0f}"]
        questions.append(cells)
    growth = [
        [
            "iterations stored",
            f"bookkeeping of one more, ms, {_runs(len(around[SHORT]))}",
            "opening the run, ms",
            "ledger lines",
        ]
    ]
    for iterations, found in around.items():
        milliseconds = spread([one["bookkeeping"] * 1e3 for one in found])
        opening = statistics.median(one["opening"] * 1e3 for one in found)
        growth.append(
            [
                f"{iterations:,}",
                f"{milliseconds.median:.1f} ({milliseconds.least:.1f} to {milliseconds.most:.1f})",
                f"{opening:.1f}",
                f"{found[0]['entries']:,.0f}",
            ]
        )
    print(as_text(questions), as_text(growth), sep="\n\n")
    if given.write:
        rows = given.iterations * given.rows
        write_results(
            NAME, machine, {**answers, **{f"bookkeeping after {n}": found for n, found in around.items()}}
        )
        write_section(
            NAME,
            f"{machine_line(machine)}\n\n{rows:,} trajectories in {given.iterations:,} iterations, "
            f"{size / 1e6:,.0f} MB. Median and range; every run is a process, and goes from an "
            f"unopened store to the answer.\n\n"
            f"{as_markdown(questions)}\n\n{as_markdown(growth)}",
        )


if __name__ == "__main__":
    main()
