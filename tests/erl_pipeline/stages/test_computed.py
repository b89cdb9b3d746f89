"""Stages computed on small inputs, with numbers worked out by hand."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.config.distillation import DistilledRoles
from erl_pipeline.config.memory import MemoryConfig
from erl_pipeline.config.plugins import plugins
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.stages.memory import (
    FORGET_MEMORY,
    INDEX_MEMORY,
    ForgetSettings,
    IndexSettings,
    opened_memory,
)
from erl_pipeline.stages.names import HELD_OUT, TRAINING, TRAJECTORIES
from erl_pipeline.stages.rollouts.generate_rollouts import GENERATE_ROLLOUTS, ListSettings
from erl_pipeline.stages.tasks import prepare_tasks
from erl_pipeline.stages.tasks.prepare_tasks import (
    PREPARE_TASKS,
    REQUESTED_TASKS,
    RequestedTaskSettings,
    TaskSettings,
    read_tasks,
)
from erl_pipeline.stages.training.distillation import (
    BUILD_DISTILLATION,
    DATASET,
    DistillationSettings,
)
from storage.artifacts.artifact import Artifact
from storage.errors import InputError
from storage.tables.training import read_sft_rows
from storage.tables.trajectories import FREE, GUIDED, Trajectory, write_trajectories
from tests.erl_pipeline.episodes.script import play
from tests.erl_pipeline.stages.calls import Bench

SECOND_ATTEMPTS = DistillationSettings(
    roles=DistilledRoles(role="second_attempt", prompt_role="first_attempt", via_role="reflection"),
    reward_above=None,
    max_rows_per_task=None,
)

MINE = '{"task_id": "mine", "board": ["SFGF", "HFFF", "FFFF", "FFFF"], "max_steps": 2}\n'


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def helped(sample: int, reflection: str = "? a b ?") -> list[Trajectory]:
    """An episode whose reflection led to success."""
    return play(["down b", reflection, "right a", "right a"], sample=sample)[0]


def failed(sample: int) -> list[Trajectory]:
    return play(["down b", "? a b ?", "down b"], sample=sample)[0]


def test_a_distillation_dataset_has_a_row_for_each_success_of_all_shards(bench: Bench) -> None:
    rollouts = bench.rollouts(helped(0), [*failed(1), *helped(2)])
    made = bench.compute(BUILD_DISTILLATION, SECOND_ATTEMPTS, {"rollouts": rollouts})
    rows = read_sft_rows([made.path(DATASET)])
    assert [row.trajectory_id for row in rows] == [helped(0)[2].trajectory_id, helped(2)[2].trajectory_id]
    # Two turns of three tokens in each.
    assert made.manifest.counters == {"sft_rows": 2, "sft_tokens": 2 * 6}
    assert made.manifest.files[0].rows == 2


def test_a_distillation_dataset_may_be_empty(bench: Bench) -> None:
    made = bench.compute(BUILD_DISTILLATION, SECOND_ATTEMPTS, {"rollouts": bench.rollouts(failed(0))})
    assert made.manifest.counters == {"sft_rows": 0, "sft_tokens": 0}
    assert read_sft_rows([made.path(DATASET)]) == []


def index_settings(**memory: Any) -> IndexSettings:
    return IndexSettings(
        keep=MemoryConfig(embedding_model="words", **memory).keep,
        text_role="reflection",
        opening_role="first_attempt",
    )


def held(bench: Bench, version: Artifact) -> list[str]:
    """Trajectories whose texts are in a memory version."""
    view = opened_memory(bench.resources, "words").at(version.manifest.artifact_id)
    return sorted(view.entries()["source_trajectory_id"].to_list())


def reflections(*episodes: list[Trajectory]) -> list[str]:
    return sorted(rows[1].trajectory_id for rows in episodes)


def ids(bench: Bench, version: Artifact) -> list[str]:
    return (
        opened_memory(bench.resources, "words")
        .at(version.manifest.artifact_id)
        .entries()["entry_id"]
        .to_list()
    )


def drawn(rows: list[Trajectory], subgroup: str, *saw: str) -> list[Trajectory]:
    """An episode whose reflection saw these entries, or from which memory was withheld."""
    version = "memory-1" if saw else ""
    reflection = replace(rows[1], subgroup=subgroup, memory_entry_ids=saw, memory_version=version)
    return [rows[0], reflection, *rows[2:]]


def test_a_memory_version_adds_to_its_parent(bench: Bench) -> None:
    settings = index_settings()
    one = bench.compute(INDEX_MEMORY, settings, {"rollouts": bench.rollouts(helped(0), failed(1))})
    assert one.manifest.counters == {"entries_added": 1, "entries": 1, "copies": 0}
    assert one.manifest.memory_version == one.manifest.artifact_id
    inputs = {
        "rollouts": bench.rollouts(helped(2, "? a b ?"), helped(3, "d a b ?")),
        "memory": one.manifest.artifact_id,
    }
    two = bench.compute(INDEX_MEMORY, settings, inputs)
    assert two.manifest.counters == {"entries_added": 1, "entries": 2, "copies": 1, "entries_returned": 1}
    assert (held(bench, one), held(bench, two)) == (
        reflections(helped(0)),
        reflections(helped(0), helped(3, "d a b ?")),
    )


def test_a_full_memory_evicts(bench: Bench) -> None:
    one = bench.compute(INDEX_MEMORY, index_settings(), {"rollouts": bench.rollouts(helped(0))})
    later = [replace(row, iteration=row.iteration + 1) for row in helped(2, "d a b ?")]
    inputs = {"rollouts": bench.rollouts(later), "memory": one.manifest.artifact_id}
    full = bench.compute(INDEX_MEMORY, index_settings(max_entries=1), inputs)
    assert full.manifest.counters == {"entries_added": 1, "entries": 1, "copies": 0, "entries_evicted": 1}
    assert held(bench, full) == reflections(helped(2, "d a b ?"))
    assert full.manifest.metrics == {}


def test_what_those_gained_who_saw_an_entry_becomes_its_credit(bench: Bench) -> None:
    """Two saw it, with rewards 1 and 0; of three without memory one had 1. Observations 2/3 and -1/3 add up
    to 1/3, and 1/3 / (2 + 8) = 1/30. Their mean is 1/6."""
    one = bench.compute(INDEX_MEMORY, index_settings(), {"rollouts": bench.rollouts(helped(0))})
    [entry_id] = ids(bench, one)
    rows = [
        *drawn(helped(2, "d a b ?"), GUIDED, entry_id),
        *drawn(failed(3), GUIDED, entry_id),
        *drawn(helped(4), FREE),
        *drawn(failed(5), FREE),
        *drawn(failed(6), FREE),
    ]
    inputs = {"rollouts": bench.rollouts(rows), "memory": one.manifest.artifact_id}
    made = [bench.compute(INDEX_MEMORY, index_settings(), inputs) for _ in range(2)]
    assert made[0].path("operations.parquet").read_bytes() == made[1].path("operations.parquet").read_bytes()
    assert made[0].manifest.counters == {
        "entries_added": 1,
        "entries": 2,
        "copies": 1,
        "entries_returned": 1,
        "entries_updated": 1,
    }
    assert made[0].manifest.metrics == {"memory_effect": pytest.approx(1 / 6)}
    view = opened_memory(bench.resources, "words").at(made[0].manifest.artifact_id)
    entry = view.get([entry_id])[entry_id]
    assert (entry.credit, entry.credit_count) == pytest.approx((1 / 30, 2))
    assert (entry.retrievals, entry.support) == (2, 2)


def test_what_is_off_changes_no_memory(bench: Bench) -> None:
    settings = [index_settings(), index_settings(top_k=3, same_task_type=False, evict="lowest_credit")]
    assert settings[0] == settings[1]
    assert index_settings(max_entries=5) != settings[0]


def test_a_forgotten_entry_leaves_the_memory_and_no_other_does(bench: Bench) -> None:
    rollouts = bench.rollouts(helped(0), helped(2, "d a b ?"))
    memory = bench.compute(INDEX_MEMORY, index_settings(), {"rollouts": rollouts}).manifest.artifact_id
    request = bench.commit(
        "forget_request",
        "request",
        settings={"entry_id": f"m-{helped(0)[1].trajectory_id}", "reason": "wrong"},
        inputs={"memory": memory},
    )
    version = bench.compute(FORGET_MEMORY, ForgetSettings(), {"memory": memory, "request": request})
    assert version.manifest.counters == {"entries_forgotten": 1}
    assert held(bench, version) == reflections(helped(2, "d a b ?"))
    again = {"memory": version.manifest.artifact_id, "request": request}
    gone = bench.compute(FORGET_MEMORY, ForgetSettings(), again)
    assert gone.manifest.counters == {"entries_forgotten": 0}


def test_the_list_of_shards_adds_up_their_counts(bench: Bench) -> None:
    def shard(name: str, **counters: int) -> str:
        def write(folder: Path) -> None:
            write_trajectories(folder / TRAJECTORIES, [])

        return bench.commit(name, "trajectories", write, counters=counters)

    counts = {"episodes": 4, "episode_successes": 1, "first_attempt_count": 4, "first_attempt_successes": 1}
    one = shard("one", **counts, second_attempt_count=0, second_attempt_successes=0)
    two = shard("two", **counts, reflection_count=3, reflection_successes=3)
    made = bench.compute(GENERATE_ROLLOUTS, ListSettings(), {"shard-0000": one, "shard-0001": two})
    assert made.manifest.counters["episodes"] == 8
    assert made.manifest.counters["reflection_count"] == 3
    assert made.manifest.metrics == {
        "success_first_attempt": 0.25,
        "success_reflection": 1.0,
        "success_episode": 0.25,
    }
    assert made.files == []


def test_retries_are_compared_with_first_attempts_over_all_shards(bench: Bench) -> None:
    """Two tasks, each in a shard of its own. At one task a retry succeeded and one failed, and no first
    attempt succeeded; at the other a retry failed, and the other first attempt succeeded."""
    solved = play(["right a", "right a"], sample=1)[0]
    other = [replace(row, task_id="other") for row in (*solved, *failed(0))]
    rollouts = bench.rollouts([*helped(0), *failed(1)], other)
    shards = bench.store.open(rollouts).manifest.inputs
    metrics = bench.compute(GENERATE_ROLLOUTS, ListSettings(), shards).manifest.metrics
    # Gains 1 - 0 and 0 - 0 at the one task, 0 - 1 at the other.
    assert metrics["gain_second_attempt"] == pytest.approx(0.0)
    assert "gain_reflection" not in metrics
    assert "reward_first_attempt" not in metrics  # each is 0 or 1


def test_graded_rewards_of_first_attempts_are_averaged_over_all_shards(bench: Bench) -> None:
    graded = [replace(row, reward=0.5) if row.parent_trajectory_id is None else row for row in failed(0)]
    shards = bench.store.open(bench.rollouts(graded, failed(1))).manifest.inputs
    metrics = bench.compute(GENERATE_ROLLOUTS, ListSettings(), shards).manifest.metrics
    assert metrics["reward_first_attempt"] == 0.25


def test_training_tasks_that_are_held_out_are_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that mixes up its splits: the same board with another id and more steps."""
    plugin = plugins("environments")["frozen_lake"].value
    leaking = replace(
        plugin,
        training_tasks=lambda settings, seed: [
            replace(task, task_id=f"mine-{task.task_id}", payload={**task.payload, "max_steps": 9})
            for task in plugin.held_out_tasks(settings, seed, 3)
        ],
    )
    found = replace(plugins("environments")["frozen_lake"], value=leaking)
    monkeypatch.setattr(prepare_tasks, "plugins", lambda group: {"frozen_lake": found})
    settings = TaskSettings(environment=FrozenLakeConfig(), files={}, held_out=3, seed=1)
    said = "training task mine-frozen_lake-held_out-0-00000 is the held-out task frozen_lake-held_out-0-00000"
    with pytest.raises(InputError, match=said):
        bench.compute(PREPARE_TASKS, settings)


def test_tasks_are_fixed_by_settings_and_seed(bench: Bench) -> None:
    lake = FrozenLakeConfig(training_boards=6)
    settings = TaskSettings(environment=lake, files={}, held_out=3, seed=1)
    made = bench.compute(PREPARE_TASKS, settings)
    training = read_tasks(made, TRAINING, bench.resources)
    held_out = read_tasks(made, HELD_OUT, bench.resources)
    assert made.manifest.counters == {"training_tasks": 6, "held_out_tasks": 3}
    assert (len(training), len(held_out)) == (6, 3)
    boards = [json.dumps(task.payload["board"]) for task in (*training, *held_out)]
    assert not set(boards[:6]) & set(boards[6:])
    other = bench.compute(PREPARE_TASKS, settings.model_copy(update={"seed": 2}))
    assert read_tasks(other, TRAINING, bench.resources) != training


def test_a_file_that_changed_after_it_was_planned_with_is_refused(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(MINE)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    settings = TaskSettings(environment=FrozenLakeConfig(), files={"task_file": digest}, held_out=2, seed=0)
    made = bench.compute(PREPARE_TASKS, settings, locations={digest: str(file)})
    assert [task.task_id for task in read_tasks(made, TRAINING, bench.resources)] == ["mine"]
    file.write_text(file.read_text().replace("mine", "yours"))
    with pytest.raises(InputError, match=r"environment\.task_file: .* has changed since the run was planned"):
        bench.compute(PREPARE_TASKS, settings.model_copy(update={"seed": 1}), locations={digest: str(file)})


def test_requested_tasks_are_those_of_a_file_or_as_many_as_asked_for(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(MINE)
    generated = RequestedTaskSettings(
        environment=FrozenLakeConfig(), files={}, held_out=4, seed=0, task_file=None
    )
    assert bench.compute(REQUESTED_TASKS, generated).manifest.counters == {"held_out_tasks": 4}
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    of_file = generated.model_copy(update={"task_file": digest})
    made = bench.compute(REQUESTED_TASKS, of_file, locations={digest: str(file)})
    assert [task.task_id for task in read_tasks(made, HELD_OUT, bench.resources)] == ["mine"]
