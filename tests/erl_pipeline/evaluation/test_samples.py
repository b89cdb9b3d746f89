from __future__ import annotations

from pathlib import Path

import pytest

from erl_pipeline.evaluation.samples import SampleCount, count_samples
from tests.training_stores import (
    FIRST,
    SECOND,
    TrainingStore,
    record,
    trajectories,
    write_replay,
    write_training_store,
)


@pytest.fixture
def made(tmp_path: Path) -> TrainingStore:
    return write_training_store(str(tmp_path / "store"))


def rollouts(made: TrainingStore, iteration: int = 3, issued: int = 2) -> None:
    """An iteration with two first attempts."""
    rows = [{**FIRST, "trajectory_id": f"third-{number}", "iteration": iteration} for number in range(2)]
    made.commit(
        "shard-3", "trajectories", iteration, inputs={"checkpoint": "tuned"}, write=trajectories(*rows)
    )
    made.commit(
        "rollouts-3",
        "rollouts",
        iteration,
        inputs={"shard-0000": "shard-3"},
        first_attempt_count=issued,
        first_attempt_successes=0,
    )


def test_every_sample_is_trained_or_dropped_for_a_reason(made: TrainingStore) -> None:
    report = count_samples(made.store, made.run("run"))
    assert report.problems == []
    assert report.counts == [
        SampleCount(1, "distilled", 1, 1, 1, {}),
        SampleCount(1, "first_attempt", 1, 1, 0, {"zero_advantage": 1}),
        SampleCount(1, "reflection", 1, 1, 1, {}),
        SampleCount(1, "second_attempt", 1, 1, 1, {}),
        SampleCount(2, "first_attempt", 1, 1, 1, {}),
    ]
    assert all(each.generated == each.trained + sum(each.dropped.values()) for each in report.counts)
    assert count_samples(made.store, made.run("run"), span=(2, 2)).counts == report.counts[4:]


def test_an_offline_run_counts_stored_rollouts_in_its_own_iterations(made: TrainingStore) -> None:
    report = count_samples(made.store, made.run("offline"))
    assert report.problems == []
    assert report.counts == [SampleCount(1, "first_attempt", 1, 1, 1, {})]


def test_what_is_replayed_is_counted_beside_what_is_fresh(made: TrainingStore) -> None:
    write_replay(made)
    report = count_samples(made.store, made.run("run"), (3, 3))
    assert report.problems == []
    assert report.counts == [
        SampleCount(3, "first_attempt", 1, 1, 1, {}),
        SampleCount(3, "replay", 1, 1, 1, {}),
    ]


def test_what_no_update_was_given_says_so(made: TrainingStore) -> None:
    rollouts(made)
    waiting = count_samples(made.store, made.run("run"), (3, 3))
    assert waiting.counts == [SampleCount(3, "first_attempt", 2, 2, 0, {"no_record": 2})]
    made.commit(
        "update-3",
        "checkpoint",
        3,
        inputs={"checkpoint": "tuned", "rollouts": "rollouts-3"},
        write=record({**FIRST, "trajectory_id": "third-1", "iteration": 3}),
        sequences=1,
        trained_tokens=3,
    )
    report = count_samples(made.store, made.run("run"), (3, 3))
    assert report.counts == [SampleCount(3, "first_attempt", 2, 2, 1, {"not_given": 1})]
    assert report.problems == []


def test_sequences_of_the_environments_words_have_no_record(made: TrainingStore) -> None:
    """Two samples of three tokens each, and beside each a sequence of five that the environment said."""
    rollouts(made)
    made.commit(
        "update-3",
        "checkpoint",
        3,
        inputs={"checkpoint": "tuned", "rollouts": "rollouts-3"},
        write=record({**FIRST, "trajectory_id": "third-1", "iteration": 3}, {**SECOND, "iteration": 3}),
        sequences=4,
        trained_tokens=6 + 10,
        observed_sequences=2,
        observed_tokens=10,
    )
    found = count_samples(made.store, made.run("run"), (3, 3)).problems
    assert not [each for each in found if "the trainer counted" in each]


def test_counts_that_do_not_add_up_are_named(made: TrainingStore) -> None:
    """Three samples were issued and two exist. The trainer counted three sequences and nine tokens; its
    record has two rows with six tokens, and one of these rows is of another iteration."""
    rollouts(made, issued=3)
    update = made.commit(
        "update-3",
        "checkpoint",
        3,
        inputs={"checkpoint": "tuned", "rollouts": "rollouts-3"},
        write=record({**FIRST, "trajectory_id": "third-1", "iteration": 3}, SECOND),
        sequences=2,
        dropped_zero_advantage=1,
        trained_tokens=9,
    )
    where = f"iteration 3, checkpoint {update[:12]}"
    assert count_samples(made.store, made.run("run"), (3, 3)).problems == [
        "iteration 3, first_attempt: 3 issued and 2 generated",
        "iteration 3, second_attempt: of the rows in the training record 1 belongs to no sample of the "
        "iteration",
        f"{where}: the trainer counted 3 sequences, its record has 2",
        f"{where}: the trainer counted 9 trained tokens, its record 6",
    ]
