"""Storing and selecting, on artifacts that a test has written."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import torch

from erl_pipeline.config.optimizer import OptimizerConfig
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.replay import BucketSettings, DrawSettings, ReplayConfig, TierSettings
from erl_pipeline.environments.interface import Task
from erl_pipeline.policies.checkpoints import LoadedPolicies, WeightsSettings
from erl_pipeline.stages.names import HELD_OUT, TRAINING
from erl_pipeline.stages.tasks.draw_tasks import SAMPLES_FILE, draw_tasks, planned_samples
from erl_pipeline.stages.tasks.prepare_tasks import task_line
from erl_pipeline.stages.training.replay.draw import SELECTION_FILE, draw_replay
from erl_pipeline.stages.training.replay.experience import (
    GROUPS_FILE,
    MEMBERS_FILE,
    Experience,
    read_experience,
)
from erl_pipeline.stages.training.replay.index_experience import INDEX_EXPERIENCE, ExperienceIndexSettings
from erl_pipeline.stages.training.replay.replayed import REPLAYED_FILE, read_replayed
from erl_pipeline.stages.training.replay.select_replay import SELECT_REPLAY, ReplaySelectSettings
from storage.artifacts.artifact import Artifact
from storage.errors import InputError
from storage.tables.trajectories import Trajectory, read_trajectories
from tests.embedders import WordEmbedder
from tests.erl_pipeline.stages.calls import Bench
from tests.erl_pipeline.stages.training.replay.attempts import group

NAMES = [f"t{number}" for number in range(8)]


def task(name: str) -> Task:
    return Task(name, "lake", "frozen_lake", {"board": name})


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """With a policy in memory that reads token ids below 100."""
    bench = Bench(tmp_path)
    embeddings = SimpleNamespace(weight=torch.zeros(100, 2))
    policy: Any = SimpleNamespace(
        model=SimpleNamespace(get_input_embeddings=lambda: embeddings),
        tokenizer_digest="ours",
        context_length=100,
    )
    bench.resources.keep("policies", LoadedPolicies).put(checkpoint(bench), policy)
    return bench


def checkpoint(bench: Bench) -> str:
    return bench.commit("checkpoint", "checkpoint", lambda folder: (folder / "model").write_text(""))


def tasks(bench: Bench, held_out: Sequence[str] = ("h",)) -> str:
    def write(folder: Path) -> None:
        for name, listed in ((TRAINING, NAMES), (HELD_OUT, held_out)):
            (folder / name).write_text("".join(task_line(task(each)) + "\n" for each in listed))

    return bench.commit(f"tasks-{'-'.join(held_out)}", "tasks", write)


def indexed(
    bench: Bench, *groups: tuple[str, str], iteration: int = 1, before: str | None = None, **changes: Any
) -> Artifact:
    """An experience version after groups of attempts: `("t1", "+-")`."""
    rows = [row for name, outcomes in groups for row in group(name, outcomes, iteration)]
    inputs = {"rollouts": bench.rollouts(rows)}
    if before is not None:
        inputs["experience"] = before
    settings = ExperienceIndexSettings(
        **{"role": "first_attempt", "sampler": "exgrpo", "start_success": 0.35, "tiers": None, **changes}
    )
    return bench.compute(INDEX_EXPERIENCE, settings, inputs, iteration=iteration)


def select_settings(**changes: Any) -> ReplaySelectSettings:
    replay = ReplayConfig(sampler=changes.pop("sampler", "uniform"))
    values: dict[str, Any] = {
        "sampler": replay.sampler,
        "share": 0.5,
        "tasks_per_iteration": 4,
        "group_size": 4,
        "buckets": BucketSettings(),
        "pick": replay.pick,
        "entropy": "vocabulary",
        "importance": "behaviour",
        "draw_retired": True,
        "max_age": None,
        "max_per_task": None,
        "tiers": TierSettings(),
        "microbatch_tokens": 100,
        "optimizer": OptimizerConfig(),
        "trainer": plugins("trainers")["local"].settings.model_validate({"type": "local"}),
        "weights": WeightsSettings(dtype="float32", lora=None, adapter_seed=None),
    }
    return ReplaySelectSettings(**{**values, **changes})


def selected(bench: Bench, experience: Artifact, iteration: int = 2, **changes: Any) -> Artifact:
    held_out = changes.pop("held_out", ("h",))
    inputs = {
        "checkpoint": checkpoint(bench),
        "tasks": tasks(bench, held_out),
        "experience": experience.manifest.artifact_id,
    }
    return bench.compute(SELECT_REPLAY, select_settings(**changes), inputs, iteration=iteration)


def whole(bench: Bench, version: Artifact) -> Experience:
    return read_experience(bench.store, version.manifest.artifact_id)


def unscored(rows: list[Trajectory], *samples: int) -> list[Trajectory]:
    """The rows, some of which were not scored."""
    return [
        replace(row, finish_reason="environment_error") if row.sample_index in samples else row
        for row in rows
    ]


def test_what_was_not_scored_lowers_no_bucket_and_retires_no_task(bench: Bench) -> None:
    # `t1`: 1 of the 2 that were scored, as 2 of 4. `t2`: both. Of `t3` nothing is known.
    rows = [
        *group("t0", "++--"),
        *unscored(group("t1", "+--+"), 2, 3),
        *unscored(group("t2", "++--"), 2, 3),
        *unscored(group("t3", "----"), 0, 1, 2, 3),
    ]
    settings = ExperienceIndexSettings(role="first_attempt", sampler="exgrpo", start_success=0.6, tiers=None)
    # 5 of 8 succeeded; with those that were not scored it would be 5 of 16.
    made = bench.compute(INDEX_EXPERIENCE, settings, {"rollouts": bench.rollouts(rows)}, iteration=1)
    assert made.manifest.counters["begun"] == 1
    experience = whole(bench, made)
    stored = experience.groups.select("task_id", "group_size", "successes", "status").rows()
    assert stored == [("t0", 4, 2, "active"), ("t1", 2, 1, "active"), ("t2", 2, 2, "retired")]
    rules = DrawSettings(
        sampler="exgrpo",
        share=1.0,
        tasks_per_iteration=2,
        group_size=4,
        buckets=BucketSettings(),
        pick="random",
        tiers=TierSettings(),
        max_age=None,
        max_per_task=None,
    )
    drawn = draw_replay(experience, rules, 2, random.Random(0))
    assert sorted((each.task_id, each.bucket) for each in drawn) == [("t0", 2), ("t1", 2)]
    # A success may have no row that can be trained on.
    without = replace(experience, members=experience.members.filter(pl.col("task_id") != "t1"))
    assert [each.task_id for each in draw_replay(without, rules, 2, random.Random(0))] == ["t0"]


def test_what_was_said_is_compared_with_what_was_said_at_the_task_before(bench: Bench) -> None:
    def said(*answers: str, iteration: int) -> str:
        rows = group("t0", "-" * len(answers), iteration)
        spoken = [json.dumps([{"role": "assistant", "content": answer}]) for answer in answers]
        return bench.rollouts([replace(row, messages=each) for row, each in zip(rows, spoken, strict=True)])

    def stored(inputs: dict[str, str], iteration: int) -> Artifact:
        settings = ExperienceIndexSettings(
            role="first_attempt",
            sampler="tiers",
            start_success=-1.0,
            tiers=TierSettings(diversity="embedding", embedding_model="words", success_weight=0.0),
        )
        return bench.compute(INDEX_EXPERIENCE, settings, inputs, iteration=iteration)

    first = stored({"rollouts": said("up", "up", iteration=1)}, 1)
    # The task has no earlier attempts: two that say the same do not differ.
    assert pl.read_parquet(first.path(MEMBERS_FILE))["quality"].to_list() == pytest.approx([0, 0], abs=1e-6)
    rollouts = said("up", "up right", iteration=2)
    second = stored({"rollouts": rollouts, "experience": first.manifest.artifact_id}, 2)
    found = pl.read_parquet(second.path(MEMBERS_FILE))
    up, both = WordEmbedder().embed(["up", "up right"])
    assert found["quality"].to_list() == pytest.approx([0.0, 1.0 - float(up @ both)], abs=1e-6)
    assert found["tier"].to_list() == [2, 0]


def test_nothing_is_stored_before_enough_attempts_succeed(bench: Bench) -> None:
    # 3 of 12 are 0.25, 4 of 8 are 0.5. Once storing has begun, it goes on, however few attempts succeed.
    early = indexed(bench, ("t0", "+---"), ("t1", "+---"), ("t2", "+---"))
    assert (early.manifest.counters["begun"], early.manifest.counters["trajectories"]) == (0, 0)
    begun = indexed(bench, ("t0", "++--"), ("t1", "++--"), iteration=2, before=early.manifest.artifact_id)
    assert begun.manifest.counters == {
        "begun": 1, "members_added": 4, "tasks": 2, "trajectories": 4, "retired": 0, "bucket_2": 2,
    }  # fmt: skip
    later = indexed(bench, ("t3", "---+"), iteration=3, before=begun.manifest.artifact_id)
    assert later.manifest.counters["begun"] == 1
    assert later.manifest.counters["trajectories"] == 5


def test_a_version_adds_to_the_one_before_and_rewrites_nothing(bench: Bench) -> None:
    one = indexed(bench, ("t0", "+-+-"))
    two = indexed(bench, ("t0", "+---"), ("t1", "---+"), iteration=2, before=one.manifest.artifact_id,
                  start_success=0.0)  # fmt: skip
    assert pl.read_parquet(two.path(MEMBERS_FILE))["trajectory_id"].to_list() == ["t0-2-0", "t1-2-3"]
    assert pl.read_parquet(two.path(GROUPS_FILE))["iteration"].to_list() == [2, 2]
    found = whole(bench, two)
    assert found.members["trajectory_id"].to_list() == ["t0-1-0", "t0-1-2", "t0-2-0", "t1-2-3"]
    # A task's bucket is that of its newest group.
    assert found.latest_groups().select("task_id", "successes").rows() == [("t0", 1), ("t1", 1)]
    known = {one.manifest.artifact_id: whole(bench, one)}
    assert read_experience(bench.store, two.manifest.artifact_id, known).members.equals(found.members)


def test_eight_of_eight_deletes_and_none_of_eight_stores_nothing(bench: Bench) -> None:
    one = indexed(bench, ("t0", "++++++--"), ("t1", "++------"))
    two = indexed(bench, ("t0", "++++++++"), ("t1", "--------"), iteration=2, before=one.manifest.artifact_id)
    assert two.manifest.counters == {
        "begun": 1, "members_added": 0, "tasks": 1, "trajectories": 2, "retired": 1, "bucket_2": 1,
    }  # fmt: skip
    assert pl.read_parquet(two.path(GROUPS_FILE))["task_id"].to_list() == ["t0"]
    assert two.manifest.metrics == {"zero_variance_first_attempt": 1.0}
    again = indexed(bench, ("t0", "+-------"), iteration=3, before=two.manifest.artifact_id)
    assert again.manifest.counters["retired"] == 1
    assert again.manifest.counters["trajectories"] == 2


def test_what_is_replayed_stands_in_the_group_of_fresh_attempts(bench: Bench) -> None:
    experience = indexed(bench, ("t0", "+-+-"), ("t1", "-+--"))
    made = selected(bench, experience)
    rows = read_trajectories([made.path(REPLAYED_FILE)])
    assert sorted(row.task_id for row in rows) == ["t0", "t1"]
    for row in rows:
        assert (row.role, row.iteration, row.sample_index) == ("replay", 2, 3)
        assert row.group_id == f"2/{row.task_id}/first_attempt/0"
        assert row.parent_trajectory_id in {"t0-1-0", "t0-1-2", "t1-1-1"}
        assert row.policy_version == "policy-1"
        assert row.behaviour_logprobs == (-0.5,) * 3
    selection = pl.read_parquet(made.path(SELECTION_FILE))
    assert selection["trajectory_id"].to_list() == [row.parent_trajectory_id for row in rows]
    assert dict(zip(selection["task_id"], selection["candidates"], strict=True)) == {"t0": 2, "t1": 1}
    assert dict(zip(selection["task_id"], selection["bucket"], strict=True)) == {"t0": 2, "t1": 1}
    assert made.manifest.counters == {"begun": 1, "replayed": 2, "candidates": 3, "tokens_saved": 6}
    assert made.manifest.metrics == {"share_replayed": 0.5, "age_mean": 1.0, "age_max": 1.0}


def test_fresh_attempts_are_planned_around_it(bench: Bench) -> None:
    experience = indexed(bench, ("t0", "+-+-"), ("t1", "-+--"))
    made = selected(bench, experience)
    samples = planned_samples(made, [task(name) for name in NAMES])
    assert sorted((each.task_id, count) for each, count in samples[:2]) == [("t0", 3), ("t1", 3)]
    fresh = [each.task_id for each, _ in samples[2:]]
    assert len(fresh) == 2
    assert not {"t0", "t1"} & set(fresh)
    assert {count for _, count in samples[2:]} == {4}
    with pytest.raises(InputError, match=r"select_replay\) plans episodes of task t\d, which is no training"):
        planned_samples(made, [task("other")])


def test_before_replay_has_begun_an_iteration_is_that_of_the_base(bench: Bench) -> None:
    made = selected(bench, indexed(bench, ("t0", "+---")))
    all_tasks = [task(name) for name in NAMES]
    drawn = draw_tasks(all_tasks, 4, 0, 2)
    assert planned_samples(made, all_tasks) == [(each, 4) for each in drawn]
    assert read_replayed(made).rows == []
    assert not read_replayed(made).begun


def test_fresh_rows_weigh_as_they_are_where_nothing_is_replayed(bench: Bench) -> None:
    experience = indexed(bench, ("t0", "----"), sampler="tiers", tiers=TierSettings(), start_success=0.9)
    assert read_replayed(selected(bench, experience, 5, sampler="tiers")).on_policy_weight is None


def test_retired_tasks_are_drawn_no_more_while_enough_remain(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    experience = indexed(bench, ("t0", "++++"), ("t1", "++++"), ("t2", "++++"))
    names = [each.task_id for each, _ in planned_samples(selected(bench, experience), list(map(task, NAMES)))]
    monkeypatch.setattr("erl_pipeline.stages.training.replay.select_replay.SPARE_TASKS", 1)
    made = selected(bench, experience, draw_retired=False)
    assert not {"t0", "t1", "t2"} & {
        each.task_id for each, _ in planned_samples(made, list(map(task, NAMES)))
    }
    monkeypatch.setattr("erl_pipeline.stages.training.replay.select_replay.SPARE_TASKS", 20)
    few = selected(bench, experience, draw_retired=False, share=0.51)
    assert [each.task_id for each, _ in planned_samples(few, list(map(task, NAMES)))] == names


def test_attempts_that_are_too_old_leave_their_task_out(bench: Bench) -> None:
    one = indexed(bench, ("t0", "+-+-"), ("t1", "-+--"))
    two = indexed(bench, ("t2", "+---"), iteration=4, before=one.manifest.artifact_id)
    rows = read_replayed(selected(bench, two, 5, max_age=2)).rows
    assert [row.task_id for row in rows] == ["t2"]


def test_tiers_draw_failures_too_and_weigh_fresh_rows(bench: Bench) -> None:
    experience = indexed(bench, ("t0", "----"), ("t1", "++++"), sampler="tiers", tiers=TierSettings())
    assert experience.manifest.counters["trajectories"] == 8
    # Eight tasks are two iterations of four: the fifth is the third pass.
    made = selected(bench, experience, 5, sampler="tiers")
    assert len(read_replayed(made).rows) == 2
    assert read_replayed(made).on_policy_weight == pytest.approx(0.5)


def test_a_replayed_row_can_count_with_its_quality(bench: Bench) -> None:
    """Two tiers, of which only the better one is drawn. The responses of a group are (5, 6, 7) and (6, 6, 7),
    whose cosine is 3 / sqrt(15)."""
    tiers = TierSettings(shares=(1.0, 0.0))
    experience = indexed(bench, ("t0", "+-"), ("t1", "-+"), sampler="tiers", tiers=tiers)
    own = read_replayed(selected(bench, experience, sampler="tiers", tiers=tiers)).rows
    assert sorted((row.parent_trajectory_id, row.reward) for row in own) == [("t0-1-0", 1.0), ("t1-1-1", 1.0)]
    by_quality = tiers.model_copy(update={"reward": "quality"})
    rows = read_replayed(selected(bench, experience, sampler="tiers", tiers=by_quality)).rows
    assert [row.parent_trajectory_id for row in rows] == [row.parent_trajectory_id for row in own]
    assert [row.reward for row in rows] == pytest.approx([0.7 + 0.3 * (1 - 3 / 15**0.5)] * 2)
    assert [row.turn_rewards for row in rows] == [None, None]
    assert all(row.success for row in rows)


@pytest.mark.parametrize("held_out", ["t0", "t1"])
def test_a_stored_attempt_at_a_held_out_task_is_refused(bench: Bench, held_out: str) -> None:
    experience = indexed(bench, ("t0", "+-+-"), ("t1", "-+--"))
    with pytest.raises(InputError, match=f"trajectory {held_out}-1-. of iteration 1 is of task {held_out}"):
        selected(bench, experience, held_out=("h", held_out))


def test_rows_of_another_tokenizer_are_refused(bench: Bench) -> None:
    rows = [replace(row, tokenizer_digest="theirs") for row in group("t0", "+-")]
    settings = ExperienceIndexSettings(role="first_attempt", sampler="exgrpo", start_success=0.35, tiers=None)
    experience = bench.compute(INDEX_EXPERIENCE, settings, {"rollouts": bench.rollouts(rows)}, iteration=1)
    with pytest.raises(InputError, match="trajectory t0-1-0 was tokenized by theirs"):
        selected(bench, experience)


def test_the_trainers_log_probabilities_must_have_been_stored(bench: Bench) -> None:
    experience = indexed(bench, ("t0", "+-+-"))
    with pytest.raises(InputError, match="importance: trainer needs them"):
        selected(bench, experience, importance="trainer")


def test_the_samples_file_is_a_table(bench: Bench) -> None:
    made = selected(bench, indexed(bench, ("t0", "+-+-")))
    (entry,) = [each for each in made.files if each.path == SAMPLES_FILE]
    assert (entry.table, entry.rows) == ("sample_counts", 4)
