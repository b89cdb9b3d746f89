from __future__ import annotations

from dataclasses import replace

import pytest

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.stages.training.training_record import reinforcement_rows
from erl_pipeline.stages.training.update_policy import (
    dropped_before_training,
    groups_by_role,
    training_sequences,
)
from erl_pipeline.trainers.metrics import SequenceRecord
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.episodes.script import play


def rows(
    subgroup: str | None, *rewards: float, group: str = "g", role: str = "first_attempt"
) -> list[Trajectory]:
    """Trajectories of one group and subgroup, one for each reward."""
    row = play(["right a", "right a"])[0][0]
    return [replace(row, reward=each, group_id=group, subgroup=subgroup, role=role) for each in rewards]


GUIDED, FREE = rows("guided", 1.0, 1.0, 0.0, 1.0), rows("free", 0.0, 0.0, 1.0, 0.0)


def advantages(trajectories: list[Trajectory], **objective: str) -> list[float]:
    sequences = training_sequences(trajectories, ObjectiveConfig.model_validate(objective))
    return [sequence.advantage for sequence in sequences]


def test_by_default_the_halves_of_a_group_are_compared_apart() -> None:
    """Guided: mean .75, standard deviation .5. Free: mean .25, the same deviation."""
    split = advantages([*GUIDED, *FREE])
    assert split == pytest.approx([0.5, 0.5, -1.5, 0.5, -0.5, -0.5, 1.5, -0.5], abs=1e-5)
    centred = advantages([*GUIDED, *FREE], advantage_normalization="mean")
    assert centred == [0.25, 0.25, -0.75, 0.25, -0.25, -0.25, 0.75, -0.25]


def test_a_group_is_compared_as_a_whole_where_the_objective_says_so() -> None:
    together = advantages([*GUIDED, *FREE], advantages_per="group", advantage_normalization="mean")
    assert together == [0.5, 0.5, -0.5, 0.5, -0.5, -0.5, 0.5, -0.5]


def test_a_subgroup_of_equal_rewards_or_of_one_has_no_advantage() -> None:
    equal, lone = rows("guided", 1.0, 1.0), rows("free", 0.0)
    assert advantages([*equal, *lone], advantages_per="subgroup") == [0.0, 0.0, 0.0]
    # Without subgroups the setting changes nothing.
    assert advantages(rows(None, 1.0, 0.0), advantages_per="subgroup") == advantages(rows(None, 1.0, 0.0))


def test_groups_without_advantage_are_counted_by_role() -> None:
    """Reflections: rewards differ in `r`, `s` has only one, and they are equal in `t`. As subgroups, the
    guided half of `g` has equal rewards and the free half has not; together they are one group with different
    rewards."""
    reflections = [
        *rows(None, 1.0, 0.0, group="r", role="reflection"),
        *rows(None, 1.0, group="s", role="reflection"),
        *rows(None, 0.0, 0.0, group="t", role="reflection"),
    ]
    given = [*rows("guided", 1.0, 1.0), *FREE, *reflections]
    of_reflections = {"groups_reflection": 3, "zero_advantage_groups_reflection": 2}
    assert groups_by_role(given, ObjectiveConfig(advantages_per="group")) == {
        "groups_first_attempt": 1,
        "zero_advantage_groups_first_attempt": 0,
        **of_reflections,
    }
    assert groups_by_role(given, ObjectiveConfig()) == {
        "groups_first_attempt": 2,
        "zero_advantage_groups_first_attempt": 1,
        **of_reflections,
    }


def test_what_a_judge_said_is_recorded_as_never_trained_and_is_in_no_group() -> None:
    first = [
        replace(row, trajectory_id=f"t-{number}") for number, row in enumerate(rows(None, 1.0, 0.0, 0.0))
    ]
    judge = replace(rows(None, 0.0, role="judge")[0], trajectory_id="t-judge")
    given = [first[0], judge, *first[1:]]
    sequences = training_sequences(given, ObjectiveConfig(advantage_normalization="mean"))
    trained = SequenceRecord(weight=1.0, steps=2, trained_tokens=8)
    recorded = list(reinforcement_rows(given, sequences, [trained] * 3))
    assert [
        (row["trajectory_id"], row["advantage"], row["not_trained"], row["steps"]) for row in recorded
    ] == [
        ("t-0", pytest.approx(2 / 3), None, 2),
        ("t-judge", None, "never_trained", 0),
        ("t-1", pytest.approx(-1 / 3), None, 2),
        ("t-2", pytest.approx(-1 / 3), None, 2),
    ]
    assert "groups_judge" not in groups_by_role(given, ObjectiveConfig())
    with pytest.raises(ValueError, match="zip"):
        list(reinforcement_rows(given, sequences, [trained] * 4))


def test_an_attempt_that_could_not_be_scored_is_recorded_so_and_is_in_no_group() -> None:
    """Without it the others are compared with their own mean, 1/2."""
    first = [
        replace(row, trajectory_id=f"t-{number}") for number, row in enumerate(rows(None, 1.0, 0.0, 0.0))
    ]
    given = [first[0], replace(first[1], finish_reason="scorer_error"), first[2]]
    sequences = training_sequences(given, ObjectiveConfig(advantage_normalization="mean"))
    recorded = reinforcement_rows(given, sequences, [SequenceRecord(weight=1.0, steps=1)] * 2)
    assert [(row["trajectory_id"], row["advantage"], row["not_trained"]) for row in recorded] == [
        ("t-0", 0.5, None),
        ("t-1", None, "scorer_error"),
        ("t-2", -0.5, None),
    ]
    assert dropped_before_training(given) == {"dropped_scorer_error": 1}


def test_a_trajectory_that_is_there_twice_has_the_record_of_each() -> None:
    (row,) = rows(None, 1.0)
    sequences = training_sequences([row, row], ObjectiveConfig())
    records = [SequenceRecord(weight=1.0, steps=steps) for steps in (1, 2)]
    assert [each["steps"] for each in reinforcement_rows([row, row], sequences, records)] == [1, 2]
