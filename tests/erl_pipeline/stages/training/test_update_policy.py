from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.stages.training.advantages import groups_by_role, training_sequences
from erl_pipeline.stages.training.training_stage import reinforcement_rows
from erl_pipeline.stages.training.update_policy import dropped_before_training, too_old, young_policies
from erl_pipeline.trainers.metrics import SequenceRecord
from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.episodes.script import play


def rows(*rewards: float, role: str = "first_attempt") -> list[Trajectory]:
    """Trajectories of one group, one for each reward."""
    row = play(["right a", "right a"])[0][0]
    return [replace(row, reward=each, group_id="g", role=role) for each in rewards]


def test_what_a_judge_said_is_recorded_as_never_trained_and_is_in_no_group() -> None:
    first = [replace(row, trajectory_id=f"t-{number}") for number, row in enumerate(rows(1.0, 0.0, 0.0))]
    judge = replace(rows(0.0, role="judge")[0], trajectory_id="t-judge")
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
    first = [replace(row, trajectory_id=f"t-{number}") for number, row in enumerate(rows(1.0, 0.0, 0.0))]
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
    (row,) = rows(1.0)
    sequences = training_sequences([row, row], ObjectiveConfig())
    records = [SequenceRecord(weight=1.0, steps=steps) for steps in (1, 2)]
    assert [each["steps"] for each in reinforcement_rows([row, row], sequences, records)] == [1, 2]


class Line:
    """A line of checkpoints as a run makes them: `bootstrap`, then an update and a fine-tuning in each
    iteration."""

    def __init__(self, folder: Path, iterations: int) -> None:
        self.store = ArtifactStore(str(folder))
        self.ids = {"bootstrap": self.commit("bootstrap", None, None)}
        newest = self.ids["bootstrap"]
        for iteration in range(1, iterations + 1):
            for stage in ("update", "tune"):
                newest = self.ids[f"{stage} {iteration}"] = self.commit(stage, iteration, newest)

    def manifest(self, name: str) -> Manifest:
        return self.store.open(self.ids[name]).manifest

    def young(self, name: str, max_age: int) -> dict[str, int]:
        """What `young_policies` finds, by name."""
        names = {artifact_id: each for each, artifact_id in self.ids.items()}
        found = young_policies(self.store, self.manifest(name), max_age)
        return {names[artifact_id]: age for artifact_id, age in found.items()}

    def commit(self, stage: str, iteration: int | None, before: str | None) -> str:
        inputs = {} if before is None else {"checkpoint": before}
        recipe = Recipe(stage, 1, {}, inputs, iteration or 0, kind="checkpoint")
        with self.store.create(recipe, run="run", iteration=iteration) as staging:
            staging.commit()
        return recipe.artifact_id


def test_age_counts_iterations_along_the_line(tmp_path: Path) -> None:
    line = Line(tmp_path, 3)
    assert line.young("tune 3", 0) == {"tune 3": 0, "update 3": 0}
    assert line.young("tune 3", 1) == {"tune 3": 0, "update 3": 0, "tune 2": 1, "update 2": 1}
    assert line.young("tune 1", 9) == {"tune 1": 0, "update 1": 0, "bootstrap": 1}
    assert line.young("bootstrap", 0) == {"bootstrap": 0}


def test_runs_that_go_on_from_each_other_are_as_many_iterations(
    tmp_path: Path,
) -> None:
    line = Line(tmp_path, 1)
    newest = line.ids["tune 1"]
    for night in ("first", "second"):
        for stage in ("update", "tune"):
            newest = line.ids[f"{stage} of the {night}"] = line.commit(stage, 1, newest)
    assert line.young("tune of the second", 1) == {
        "tune of the second": 0,
        "update of the second": 0,
        "tune of the first": 1,
        "update of the first": 1,
    }
    assert line.young("tune of the second", 2)["tune 1"] == 2


def test_no_more_of_the_line_is_read_than_the_limit_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(tmp_path, 9)
    newest, find = line.manifest("tune 9"), line.store.find
    read: list[str] = []

    def watched(artifact_id: str) -> Manifest | None:
        read.append(artifact_id)
        return find(artifact_id)

    monkeypatch.setattr(line.store, "find", watched)
    young_policies(line.store, newest, 1)
    assert read == [line.ids[name] for name in ("update 9", "tune 8", "update 8", "tune 7")]


def test_what_is_too_old_is_in_no_group_and_is_recorded_so(tmp_path: Path) -> None:
    """The update of iteration 4, with max_age 1: the policies of iterations 3 and 2 are young enough. Fresh
    rows are of the newest policy. Of the replayed rows the first was sampled by the policy of iteration 2,
    the second by that of iteration 1, the third by the first policy, the fourth by another run's. A judge's
    texts are never trained on, whatever their age. Rewards of the remaining rows are 1, 0, 0, with mean 1/3;
    with the others the mean would be 4/6.
    """
    line = Line(tmp_path, 3)
    row = play(["right a", "right a"])[0][0]

    def sampled(name: str, policy: str, reward: float, role: str = "first_attempt") -> Trajectory:
        version = line.ids.get(policy, "f" * 32)
        return replace(
            row, trajectory_id=name, policy_version=version, reward=reward, role=role, group_id="g"
        )

    rows = [
        sampled("fresh-1", "tune 3", 1.0),
        sampled("fresh-2", "tune 3", 0.0),
        sampled("judge", "tune 1", 0.0, "judge"),
        sampled("replayed-1", "tune 2", 0.0, "replay"),
        sampled("replayed-2", "tune 1", 1.0, "replay"),
        sampled("replayed-3", "bootstrap", 1.0, "replay"),
        sampled("replayed-4", "another run's", 1.0, "replay"),
    ]
    old = too_old(rows, young_policies(line.store, line.manifest("tune 3"), 1))
    assert old == {"replayed-2", "replayed-3", "replayed-4"}
    given = [row for row in rows if row.trajectory_id not in old]
    sequences = training_sequences(given, ObjectiveConfig(advantage_normalization="mean"))
    records = [SequenceRecord(weight=1.0, steps=1)] * 3
    assert [
        (row["trajectory_id"], row["advantage"], row["not_trained"], row["steps"])
        for row in reinforcement_rows(rows, sequences, records, old)
    ] == [
        ("fresh-1", pytest.approx(2 / 3), None, 1),
        ("fresh-2", pytest.approx(-1 / 3), None, 1),
        ("judge", None, "never_trained", 0),
        ("replayed-1", pytest.approx(-1 / 3), None, 1),
        ("replayed-2", None, "too_old", 0),
        ("replayed-3", None, "too_old", 0),
        ("replayed-4", None, "too_old", 0),
    ]
    assert dropped_before_training(rows, old) == {"dropped_never_trained": 1, "dropped_too_old": 3}
