from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from erl_pipeline.environments.hotpotqa import tasks as splits_of
from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig
from erl_pipeline.environments.hotpotqa.tasks import (
    Passage,
    different_passages,
    held_out_tasks,
    question_key,
    read_passages,
    read_questions,
    training_tasks,
)
from storage.errors import InputError
from tests.erl_pipeline.environments.hotpotqa.small_file import HOLM, MAYOR, RIVER, question, write


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
    # Full-width letters, and an ß.
    wide = str.maketrans({letter: chr(ord(letter) + 0xFEE0) for letter in "abcdefghijklmnopqrstuvwxyz"})
    again += [
        {**question(n), "_id": f"wide-{n}", "question": question(n)["question"].translate(wide)}
        for n in range(6)
    ]
    config = HotpotQAConfig(
        task_file=write(tmp_path, *map(question, range(6)), *again), held_out_share=0.5, test_share=0.0
    )
    held_out = {question_key(task.payload) for task in held_out_tasks(config, 0, 9)}
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


def test_a_question_of_the_official_format_is_read(tmp_path: Path) -> None:
    (read,) = read_questions(Path(write(tmp_path, MAYOR)))
    assert (read.question_id, read.answer, read.kind) == ("q-mayor", "Anna Holm", "bridge")
    assert read.supporting == ("River Ode", "Bragg")
    assert read.context[1] == Passage(
        "River Ode", "The River Ode is in Norland. It flows past the town of Bragg."
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"answer": ""}, "answer: ''; allowed is a text that is not empty"),
        ({"question": 3}, "question: 3; allowed is a text"),
        ({"context": [["River Ode", "text"]]}, r"context: a list of \[title, \[sentences\]\]"),
        ({"supporting_facts": []}, "supporting_facts: a list"),
        ({"supporting_facts": [["Oslo", 0]]}, "supporting_facts: the context has no page 'Oslo'"),
        ({"_id": "q-1"}, "_id 'q-1' is already that of question 1"),
    ],
)
def test_a_bad_question_is_named_with_what_is_wrong(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    file = write(tmp_path, {**MAYOR, "_id": "q-1"}, {**MAYOR, **changed})
    with pytest.raises(InputError, match=f"question file .*questions.json, question 2: {said}"):
        read_questions(Path(file))


def test_a_question_without_its_answer_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, {key: value for key, value in MAYOR.items() if key != "answer"})
    with pytest.raises(InputError, match="question 1: answer missing; needed: an object with _id, question"):
        read_questions(Path(file))


@pytest.mark.parametrize(
    ("text", "said"), [("[{", "is not JSON"), ("{}", "holds no questions"), ("[]", "no")]
)
def test_a_file_that_is_no_list_of_questions_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "questions.json"
    file.write_text(text)
    with pytest.raises(InputError, match=said):
        read_questions(file)


def test_further_pages_are_json_lines_and_equal_pages_are_one(tmp_path: Path) -> None:
    file = tmp_path / "pages.jsonl"
    pages = [{"title": HOLM[0], "text": HOLM[1][0]}, {"title": "Oslo", "text": "Oslo is a town."}]
    file.write_text("\n".join(map(json.dumps, pages)))
    questions = read_questions(
        Path(write(tmp_path, {**MAYOR, "context": [RIVER, HOLM, ["Bragg", ["A town."]]]}))
    )
    titles = [page.title for page in different_passages(questions, read_passages(file))]
    assert titles == ["River Ode", "Holm Castle", "Bragg", "Oslo"]
    file.write_text('{"title": "Oslo"}')
    with pytest.raises(InputError, match="line 1: text missing; needed: an object with title, text"):
        read_passages(file)
