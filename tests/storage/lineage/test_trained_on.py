from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storage.errors import DamagedArtifact, InputError
from storage.lineage.trained_on import RowFilter, TrainedOn, training_data
from tests.histories import History
from tests.training_stores import TrainingStore, record, trajectories, write_replay, write_training_store


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TrainingStore:
    return write_training_store(str(tmp_path_factory.mktemp("made") / "store"))


def found(made: TrainingStore, policy: str, **wanted: Any) -> list[tuple[str, str, str]]:
    """(how, name of the policy that trained it, role) of each row."""
    names = {artifact_id: name for name, artifact_id in made.ids.items()}
    rows = TrainedOn(made.store, made.ids[policy]).rows(RowFilter(**wanted)).collect()
    return [(row["how"], names[row["policy"]], row["role"]) for row in rows.to_dicts()]


def test_a_policy_learned_from_its_own_rows_and_by_inheritance_from_those_before(made: TrainingStore) -> None:
    assert found(made, "update") == [
        ("directly", "update", "reflection"),
        ("directly", "update", "second_attempt"),
    ]
    inherited = [
        ("by inheritance", "tuned", "distilled"),
        ("by inheritance", "update", "reflection"),
        ("by inheritance", "update", "second_attempt"),
    ]
    # An offline run's training on rollouts does not belong to the policies of the run that sampled them, nor
    # the other way round.
    assert found(made, "update-2") == [("directly", "update-2", "first_attempt"), *inherited]
    assert found(made, "offline") == [("directly", "offline", "first_attempt"), *inherited]
    assert found(made, "bootstrap") == []


def test_rows_are_filtered_and_supervised_rows_have_the_reward_of_their_attempt(made: TrainingStore) -> None:
    assert found(made, "tuned", success=True)[0] == ("directly", "tuned", "distilled")
    assert len(found(made, "tuned", success=True)) == len(found(made, "tuned", min_reward=1.0)) == 3
    assert found(made, "update-2", success=False) == [("directly", "update-2", "first_attempt")]
    assert found(made, "update-2", role="reflection") == [("by inheritance", "update", "reflection")]
    assert len(found(made, "update-2", iterations=(1, 1))) == 3
    assert found(made, "update-2", task_type="another") == []


def test_text_is_looked_for_in_what_the_policy_said(made: TrainingStore) -> None:
    # The user says "right?" in every prompt; only the reflection and the second attempt answer so.
    assert found(made, "update-2", text="right?") == []
    assert [role for _, _, role in found(made, "tuned", text="right")] == [
        "distilled",
        "reflection",
        "second_attempt",
    ]
    assert found(made, "tuned", text="go\nright") == [("by inheritance", "update", "reflection")]


def test_rows_get_their_texts_and_rewards(made: TrainingStore) -> None:
    learned = TrainedOn(made.store, made.ids["tuned"])
    texts = learned.texts(learned.rows(RowFilter()).collect())
    assert texts.select("text", "reward", "success").rows() == [
        ("right", 1.0, True),
        ("go\nright", 1.0, True),
        ("right", 1.0, True),
    ]


def test_the_data_of_a_training_ends_at_trajectories(made: TrainingStore) -> None:
    names = {artifact_id: name for name, artifact_id in made.ids.items()}
    data = training_data(made.store.find, [made.ids["tuned"]])
    assert [names[each] for each in data] == ["dataset", "rollouts", "shard"]


def test_what_is_replayed_is_data_and_the_experience_it_came_from_is_not(tmp_path: Path) -> None:
    made = write_training_store(str(tmp_path / "store"))
    write_replay(made)
    names = {artifact_id: name for name, artifact_id in made.ids.items()}
    data = training_data(made.store.find, [made.ids["update-3"]])
    assert {names[each] for each in data} == {"rollouts-3", "shard-3", "replay-3"}
    assert found(made, "update-3", text="right")[0] == ("directly", "update-3", "replay")


def test_memory_entries_stood_in_the_prompts_of_rows(tmp_path: Path) -> None:
    made = write_training_store(str(tmp_path / "store"))
    seen = {"trajectory_id": "seen", "role": "reflection", "iteration": 3}
    again = {**seen, "trajectory_id": "again"}
    left_out = {**seen, "trajectory_id": "left out"}
    shown = [(seen, ["m-a", "m-b"]), (again, ["m-b"]), (left_out, ["m-c"])]
    made.commit(
        "shard-3",
        "trajectories",
        3,
        write=trajectories(*({**row, "memory_entry_ids": entries} for row, entries in shown)),
    )
    made.commit("rollouts-3", "rollouts", 3, inputs={"shard-0000": "shard-3"})
    made.commit(
        "update-3",
        "checkpoint",
        3,
        inputs={"checkpoint": "update-2", "rollouts": "rollouts-3"},
        write=record(seen, again, {**left_out, "not_trained": "zero_advantage"}),
    )
    learned = TrainedOn(made.store, made.ids["update-3"])
    entries = learned.memory_entries(learned.rows(RowFilter()))
    assert entries.rows() == [("m-b", 2), ("m-a", 1)]
    assert learned.memory_entries(learned.rows(RowFilter(role="distilled"))).is_empty()
    first = TrainedOn(made.store, made.ids["bootstrap"])
    assert first.memory_entries(first.rows(RowFilter())).is_empty()


def test_policies_that_left_no_record_are_named(history: History, made: TrainingStore) -> None:
    learned = TrainedOn(history.store, history.ids["update-2"])
    names = {artifact_id: name for name, artifact_id in history.ids.items()}
    found = [names[policy.manifest.artifact_id] for policy in learned.without_record]
    assert found == ["update-2", "tuned", "update"]
    assert learned.rows(RowFilter()).collect().is_empty()
    # Rows that are not trained on need none.
    assert TrainedOn(made.store, made.ids["update-2"]).without_record == []


def test_only_a_checkpoint_was_trained(made: TrainingStore) -> None:
    with pytest.raises(InputError, match=r"\(rollouts\) is of kind rollouts; give a checkpoint"):
        TrainedOn(made.store, made.ids["rollouts"])
    with pytest.raises(InputError, match="no artifact abc"):
        TrainedOn(made.store, "abc")


def test_a_changed_record_is_refused_and_changed_weights_are_not_looked_at(tmp_path: Path) -> None:
    made = write_training_store(str(tmp_path / "store"))
    folder = Path(made.store.uri) / "artifacts" / "update" / made.ids["update"]
    (folder / "weights").write_bytes(b"other")
    fresh = type(made.store)(made.store.uri)
    assert TrainedOn(fresh, made.ids["update"]).rows(RowFilter()).collect().height == 2
    record = folder / "training_record.parquet"
    record.write_bytes(record.read_bytes()[:-1] + b"x")
    with pytest.raises(DamagedArtifact, match=r"training_record\.parquet"):
        TrainedOn(type(made.store)(made.store.uri), made.ids["update"]).rows(RowFilter())
