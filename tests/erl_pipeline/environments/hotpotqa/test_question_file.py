import json
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.environments.hotpotqa.question_file import (
    Passage,
    different_passages,
    read_passages,
    read_questions,
)
from storage.errors import InputError
from tests.erl_pipeline.environments.hotpotqa.small_file import HOLM, MAYOR, RIVER, write


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
    with pytest.raises(InputError, match="line 1: text: None; allowed is a text that is not empty"):
        read_passages(file)
