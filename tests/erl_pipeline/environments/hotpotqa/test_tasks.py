import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from erl_pipeline.environments.hotpotqa import tasks as splits_of
from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig
from erl_pipeline.environments.hotpotqa.tasks import held_out_tasks, question_key, training_tasks
from storage.errors import InputError
from tests.erl_pipeline.environments.hotpotqa.small_file import MAYOR, question, write


def test_the_three_splits_are_disjoint_and_make_up_the_file(tmp_path: Path) -> None:
    config = HotpotQAConfig(task_file=write(tmp_path), held_out_share=0.3, test_share=0.2)
    splits = [training_tasks(config, 0), held_out_tasks(config, 0, 3), splits_of.test_tasks(config, 0)]
    assert list(map(len, splits)) == [5, 3, 2]
    assert len({task.task_id for split in splits for task in split}) == 10
    assert splits == [
        training_tasks(config, 7),
        held_out_tasks(config, 7, 3),
        splits_of.test_tasks(config, 7),
    ]
    assert held_out_tasks(config, 0, 2) == splits[1][:2]
    other = config.model_copy(update={"split_seed": 1})
    assert training_tasks(other, 0) != splits[0]


def test_questions_of_the_same_words_are_in_one_split(tmp_path: Path) -> None:
    again = [
        {**question(n), "_id": f"again-{n}", "question": question(n)["question"].upper()} for n in range(6)
    ]
    config = HotpotQAConfig(
        task_file=write(tmp_path, *map(question, range(6)), *again), held_out_share=0.5, test_share=0.0
    )
    held_out = {question_key(task.payload) for task in held_out_tasks(config, 0, 6)}
    assert len(held_out) == 3
    assert not held_out & {question_key(task.payload) for task in training_tasks(config, 0)}
    assert splits_of.test_tasks(config, 0) == []


def test_more_held_out_tasks_than_there_are_is_an_error(tmp_path: Path) -> None:
    config = HotpotQAConfig(task_file=write(tmp_path))
    with pytest.raises(
        InputError, match=r"evaluation\.tasks: 3 held-out tasks .* has 2 with .*: 0\.2; ask for"
    ):
        held_out_tasks(config, 0, 3)


def test_the_file_must_be_named() -> None:
    with pytest.raises(InputError, match=r"environment\.task_file is not set"):
        training_tasks(HotpotQAConfig(), 0)


def test_some_questions_must_be_left_for_training() -> None:
    with pytest.raises(ValidationError, match="allowed is less than 1 together"):
        HotpotQAConfig(held_out_share=0.5, test_share=0.5)


def test_a_payload_opens_the_task_and_holds_no_context(tmp_path: Path) -> None:
    config = HotpotQAConfig(
        task_file=write(tmp_path, MAYOR, *map(question, range(2))), held_out_share=0.2, test_share=0.0
    )
    tasks = [*training_tasks(config, 0), *held_out_tasks(config, 0, 1)]
    payload = next(task.payload for task in tasks if task.task_type == "hotpotqa-bridge")
    assert payload == {
        "question": MAYOR["question"],
        "answer": "Anna Holm",
        "supporting": ["River Ode", "Bragg"],
        "level": "easy",
    }


@pytest.mark.skipif(
    "ERL_TEST_DATA" not in os.environ, reason="ERL_TEST_DATA names no folder of real task files"
)
def test_real_questions_are_read_and_split() -> None:
    file = Path(os.environ["ERL_TEST_DATA"]) / "hotpotqa_distractor_60.json"
    config = HotpotQAConfig(task_file=str(file))
    assert (
        len(training_tasks(config, 0)),
        len(held_out_tasks(config, 0, 12)),
        len(splits_of.test_tasks(config, 0)),
    ) == (
        36,
        12,
        12,
    )
