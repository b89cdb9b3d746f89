"""Small runs, committed through the real store: two tasks, two iterations, made-up attempts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.config.plugins import plugins
from erl_pipeline.stages.columns import with_groups
from erl_pipeline.views.report.page import RunDescription
from storage.artifacts.manifest import Determinism
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.memory.entries import MEMORY
from storage.runs.run import Run, RunStore
from storage.tables.parquet import write_rows
from storage.tables.trajectories import Trajectory, write_trajectories
from tests.stage_records import KINDS

BOARD = ["SFF", "FHF", "FFG"]


def memory_rows(rows: Sequence[Mapping[str, Any]]) -> Callable[[Path], object]:
    """Writes these rows as the entries of a memory."""
    return lambda folder: write_rows(folder / "entries.parquet", rows, MEMORY)


@dataclass
class RecordedRun:
    """A run under construction."""

    store: ArtifactStore
    run: Run
    description: RunDescription
    checkpoints: list[str] = field(default_factory=list)

    def commit(
        self,
        stage: str,
        iteration: int | None,
        write: Callable[[Path], object] = lambda folder: None,
        inputs: Mapping[str, str] | None = None,
        counters: Mapping[str, int] | None = None,
        metrics: Mapping[str, float] | None = None,
        key: str = "",
        determinism: Determinism = "bytes",
    ) -> str:
        settings = {"iteration": iteration, "key": key, "run": self.run.name}
        recipe = Recipe(stage, 1, settings, dict(inputs or {}), 0, kind=KINDS[stage])
        with self.store.create(recipe, run=self.run.name, iteration=iteration) as staging:
            write(staging.path)
            staging.commit(counters=counters or {}, metrics=metrics or {}, determinism=determinism)
        self.run.record(
            iteration, stage, recipe.artifact_id, kind=recipe.kind, key=key, reused=False, seconds=0.5
        )
        return recipe.artifact_id

    def begin(self) -> None:
        self.tasks = self.commit("prepare_tasks", None, counters={"training_tasks": 2, "held_out_tasks": 2})
        self.checkpoints.append(self.commit("bootstrap", None))

    def evaluate(self, iteration: int, solved: Sequence[bool]) -> None:
        rows = [
            attempt(f"held-out-{number}", 0, "first_attempt", success, iteration, temperature=0.0)
            for number, success in enumerate(solved)
        ]
        rate = sum(solved) / len(solved)
        self.commit(
            "evaluate",
            iteration,
            lambda folder: _write(folder / "evaluation.parquet", rows),
            inputs={"checkpoint": self.checkpoints[-1], "tasks": self.tasks},
            counters={"episodes": len(rows), "generated_tokens": 8},
            metrics={
                "greedy_success": rate,
                "greedy_success_low": rate / 2,
                "greedy_success_high": (1 + rate) / 2,
            },
        )

    def iterate(self, iteration: int, rows: Sequence[Trajectory], numbers: Mapping[str, float]) -> str:
        """Rollouts in one shard and an update; returns the rollouts' id."""
        counters = {"episodes": 2, "generated_tokens": 100}
        if "second_attempt_count" in numbers:
            counters["second_attempt_count"] = int(numbers["second_attempt_count"])
        shard = self.commit(
            "rollout_shard",
            iteration,
            lambda folder: _write(folder / "trajectories.parquet", rows),
            inputs={"checkpoint": self.checkpoints[-1], "tasks": self.tasks},
            counters=counters,
            key="0000",
        )
        rates = {name: value for name, value in numbers.items() if name.startswith("success")}
        rollouts = self.commit(
            "generate_rollouts", iteration, inputs={"shard-0000": shard}, counters=counters, metrics=rates
        )
        self.description = replace(self.description, done=iteration)
        self.checkpoints.append(
            self.commit(
                "update_policy",
                iteration,
                inputs={"checkpoint": self.checkpoints[-1], "rollouts": rollouts},
                counters={"optimizer_steps": 1},
                metrics={"policy_loss": -0.1 * iteration, "grad_norm": 0.5, "entropy": 1.2},
            )
        )
        return rollouts


def attempt(
    task_id: str,
    sample: int,
    role: Any,
    success: bool,
    iteration: int,
    temperature: float = 1.0,
    parent: Trajectory | None = None,
    **changes: Any,
) -> Trajectory:
    """A trajectory on the 3x3 board, one turn long."""
    revision = 0 if parent is None else max(1, parent.revision_index)
    row = Trajectory(
        trajectory_id=f"{iteration}-{task_id}-{sample}-{role}",
        episode_id=f"{iteration}-{task_id}-{sample}",
        parent_trajectory_id=None if parent is None else parent.trajectory_id,
        iteration=iteration,
        task_id=task_id,
        task_type="frozen_lake-3x3",
        environment="frozen_lake",
        role=role,
        revision_index=revision,
        sample_index=sample,
        group_id=f"{task_id}/{role}",
        subgroup=None,
        prompt_token_ids=(1, 2),
        response_token_ids=(3,),
        response_mask=(1,),
        behaviour_logprobs=(-0.5,),
        temperature=temperature,
        policy_version="checkpoint",
        tokenizer_digest="tokenizer",
        reward=float(success),
        success=success,
        finish_reason="done",
        truncated=False,
        feedback="You fell into a hole." if not success else "You reached the goal.",
        messages=json.dumps(
            [{"role": "user", "content": f"the {role} prompt"}, {"role": "assistant", "content": "down a"}]
        ),
        text=None,
        memory_version="",
        memory_entry_ids=(),
        seed=0,
        task_payload=json.dumps({"board": BOARD, "max_steps": 6, "actions": {"a": "up", "b": "down"}}),
    )
    return replace(row, **changes)


def retried_episode(
    task_id: str, sample: int, helped: bool, iteration: int, memory: tuple[str, ...] = ()
) -> list[Trajectory]:
    """A failed first attempt, a reflection and a second attempt."""
    first = attempt(task_id, sample, "first_attempt", False, iteration)
    reflection = attempt(
        task_id,
        sample,
        "reflection",
        helped,
        iteration,
        parent=first,
        text="Say <b>b</b> to go down.",
        memory_entry_ids=memory,
    )
    return [
        first,
        reflection,
        attempt(task_id, sample, "second_attempt", helped, iteration, parent=reflection),
    ]


def memory_row(entry_id: str, text: str) -> dict[str, Any]:
    """A row of a memory delta; its vector is arbitrary, since reports read only texts."""
    strings = dict.fromkeys(MEMORY.schema.names, "")
    return strings | {
        "entry_id": entry_id,
        "text": text,
        "vector": (1.0,),
        "support": 1,
        "credit": 0.0,
        "credit_count": 0,
        "retrievals": 0,
        "iteration": 1,
        "last_iteration": 1,
        "parent_entry_ids": (),
    }


def _write(path: Path, rows: Sequence[Trajectory]) -> None:
    write_trajectories(path, rows)


def _begin(folder: Path, name: str, method: str = "erl") -> RecordedRun:
    config = {
        "name": name,
        "seed": 0,
        "iterations": 2,
        "method": {"type": method},
        "environment": {"type": "frozen_lake"},
        "policy": {"type": "tiny"},
    }
    plugin = plugins("methods")[method].value
    defaults = plugin.settings()
    columns = tuple(with_groups(plugin.columns(defaults), replays=False, form=plugin.distils_by_itself))
    description = RunDescription(columns, plugin.roles(defaults), done=0)
    return RecordedRun(ArtifactStore(str(folder)), RunStore(str(folder)).create(name, config), description)


@pytest.fixture
def new_run(tmp_path: Path) -> RecordedRun:
    """A run that was created and has computed nothing yet."""
    return _begin(tmp_path / "store", "new")


@pytest.fixture
def erl_run(tmp_path: Path) -> RecordedRun:
    """Two ERL iterations: a reflection that helped, one that did not, and a first attempt that succeeded."""
    recorded = _begin(tmp_path / "store", "lake")
    recorded.begin()
    recorded.evaluate(0, [False, True])
    memory: dict[str, str] = {}
    for iteration in (1, 2):
        seen = ("entry-1",) if iteration == 2 else ()
        rows = [
            *retried_episode("lake-1", 0, True, iteration, seen),
            *retried_episode("lake-2", 0, False, iteration),
            attempt("lake-2", 1, "first_attempt", True, iteration),
        ]
        numbers = {
            "second_attempt_count": 2,
            "success_first_attempt": 1 / 3,
            "success_second_attempt": 0.5,
            "success_episode": 2 / 3,
        }
        rollouts = recorded.iterate(iteration, rows, numbers)
        entries = [memory_row(f"entry-{iteration}", "Look before you step.")]
        memory = {
            "memory": recorded.commit(
                "index_memory",
                iteration,
                memory_rows(entries),
                inputs={"rollouts": rollouts, **memory},
                counters={"entries_added": 1, "entries": iteration},
            )
        }
        dataset = recorded.commit(
            "build_distillation", iteration, inputs={"rollouts": rollouts}, counters={"sft_rows": 1}
        )
        recorded.checkpoints.append(
            recorded.commit(
                "fine_tune",
                iteration,
                inputs={"checkpoint": recorded.checkpoints[-1], "dataset": dataset},
                counters={"optimizer_steps": 3},
                metrics={"first_loss": 1.0 / iteration, "last_loss": 0.5, "grad_norm": 0.9},
            )
        )
        recorded.evaluate(iteration, [True, True])
    return recorded


@pytest.fixture
def rlvr_run(tmp_path: Path) -> RecordedRun:
    """One RLVR iteration: first attempts only, no memory, no distillation."""
    recorded = _begin(tmp_path / "store", "baseline", method="rlvr")
    recorded.begin()
    recorded.evaluate(0, [False, False])
    rows = [
        attempt("lake-1", 0, "first_attempt", False, 1),
        attempt("lake-1", 1, "first_attempt", True, 1),
    ]
    recorded.iterate(1, rows, {"success_first_attempt": 0.5, "success_episode": 0.5})
    return recorded


@pytest.fixture
def make_attempt() -> Callable[..., Trajectory]:
    """`attempt`, for tests that need other rows."""
    return attempt


@pytest.fixture
def make_retried() -> Callable[..., list[Trajectory]]:
    """`retried_episode`, for tests that need other rows."""
    return retried_episode
