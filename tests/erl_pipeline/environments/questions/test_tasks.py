from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from erl_pipeline.environments.questions import ENVIRONMENT
from erl_pipeline.environments.questions.settings import QuestionsConfig
from erl_pipeline.environments.questions.tasks import QuestionRecord, read_questions
from storage.errors import ConfigError, InputError

GOOD = '{"question": "What is 1 + 1?", "answer": 2, "id": "sum", "task_type": "sums", "tolerance": 0.5}'
SOLUTION = "Half of 48 is 24.\n48 + 24 = 72\n#### 1,072"


def write(folder: Path, *lines: str, name: str = "questions.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def sums(folder: Path, first: int, last: int, name: str = "questions.jsonl") -> str:
    lines = [json.dumps({"question": f"{n} + 1?", "answer": n + 1}) for n in range(first, last)]
    return str(write(folder, *lines, name=name))


def test_a_line_has_a_question_an_answer_and_what_scorers_may_want(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, "", '{"question": " Capital of France? ", "answer": "Paris"}')
    assert read_questions(path, "lines") == [
        QuestionRecord("What is 1 + 1?", "2", 1, "sum", "sums", {"tolerance": 0.5}),
        QuestionRecord("Capital of France?", "Paris", 3, None, None, {}),
    ]
    tasks = ENVIRONMENT.training_tasks(QuestionsConfig(training_file=str(path), held_out_share=0.0), 0)
    assert [(task.task_id, task.task_type) for task in tasks] == [
        ("sum", "sums"),
        ("questions-7b9322536ee4", "questions"),
    ]
    assert tasks[0].payload == {"question": "What is 1 + 1?", "answer": "2", "tolerance": 0.5}


def test_of_gsm8k_what_follows_the_mark_is_the_answer(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps({"question": "How many clips?", "answer": SOLUTION}))
    [question] = read_questions(path, "gsm8k")
    assert (question.question, question.answer) == ("How many clips?", "1,072")
    assert question.payload == {"question": "How many clips?", "answer": "1,072"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON: .* at column 2"),
        ("[" * 100_000, "its JSON is nested too deeply"),
        ("[]", "question, answer missing; needed: an object with question, answer"),
        ('{"question": "Why?"}', "answer missing"),
        ('{"question": " ", "answer": "x"}', "question: ' '; allowed is a text that is not empty"),
        ('{"question": "Why?", "answer": true}', "answer: True; allowed is a text"),
        ('{"question": "Why?", "answer": ["x"]}', "answer: .*; allowed is a text"),
        ('{"question": "Why?", "answer": NaN}', "NaN is no JSON number"),
        ('{"question": "Why?", "answer": "x", "id": ""}', "id: ''; allowed is a text"),
        ('{"question": "what  is 1 + 1?", "answer": "x"}', "its question is already on line 1: 'what is 1"),
        ('{"question": "Why?", "answer": "x", "id": "sum"}', "its id is already on line 1: 'sum'"),
        (json.dumps({"question": "Why?", "answer": SOLUTION}), ".*; set environment.source: gsm8k"),
    ],
)
def test_a_bad_line_is_told_with_file_line_and_reason(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path, GOOD, line)
    with pytest.raises(InputError, match=rf"question file {path}, line 2: {message}"):
        read_questions(path, "lines")


def test_a_solution_without_mark_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, '{"question": "Why?", "answer": "72"}')
    with pytest.raises(
        InputError, match=r"line 1: answer: its last line has to be `#### ` and the final answer"
    ):
        read_questions(path, "gsm8k")


@pytest.mark.parametrize(
    ("scorer", "answer", "message"),
    [
        ("numeric", "Paris", "answer: 'Paris'; allowed with scorer: numeric is one number"),
        ("exact", "...", r"answer: '\.\.\.' has nothing that could be compared"),
        ("f1", "?", r"answer: '\?' has no word that could be compared"),
        ("math", "x" * 500, "allowed with scorer: math are expressions of 1 to 400 characters"),
    ],
)
def test_an_answer_that_the_scorer_cannot_compare_with_is_a_bad_line(
    tmp_path: Path, scorer: str, answer: str, message: str
) -> None:
    path = write(tmp_path, json.dumps({"question": "Why?", "answer": answer}))
    with pytest.raises(InputError, match=rf"line 1: .*{message}"):
        ENVIRONMENT.training_tasks(QuestionsConfig(training_file=str(path), scorer=scorer), 0)


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_questions(tmp_path / "none.jsonl", "lines")
    (tmp_path / "latin.jsonl").write_bytes(b"\xe9")
    with pytest.raises(InputError, match=r"is not UTF-8 text \(byte 0\)"):
        read_questions(tmp_path / "latin.jsonl", "lines")
    with pytest.raises(InputError, match="holds no question"):
        read_questions(write(tmp_path, ""), "lines")
    with pytest.raises(ConfigError, match=r"environment\.training_file: give a file"):
        ENVIRONMENT.dependencies.files(QuestionsConfig())


def test_the_splits_of_one_file_are_apart_and_follow_from_the_seed(tmp_path: Path) -> None:
    """Of 20 questions 4 are set aside, 2 held out, 14 trained on."""
    config = QuestionsConfig(training_file=sums(tmp_path, 0, 20), held_out_share=0.1, test_share=0.2)
    training, test = ENVIRONMENT.training_tasks(config, 0), ENVIRONMENT.splits.test_tasks(config, 0)
    held_out = ENVIRONMENT.held_out_tasks(config, 0, 2)
    keys = [ENVIRONMENT.splits.task_key(task.payload) for task in (*training, *held_out, *test)]
    assert (len(training), len(held_out), len(test), len(set(keys))) == (14, 2, 4, 20)
    assert held_out[:1] == ENVIRONMENT.held_out_tasks(config, 7, 1)
    other = ENVIRONMENT.held_out_tasks(config.model_copy(update={"split_seed": 1}), 0, 2)
    assert held_out != other
    with pytest.raises(InputError, match=r"evaluation\.tasks: 3 held-out questions .* there are 2; .*share"):
        ENVIRONMENT.held_out_tasks(config, 0, 3)


def test_with_a_file_of_their_own_held_out_and_test_questions_come_from_it(tmp_path: Path) -> None:
    training, apart = sums(tmp_path, 0, 10), sums(tmp_path, 10, 15, "held_out.jsonl")
    config = QuestionsConfig(training_file=training, held_out_file=apart, test_share=0.5)
    assert len(ENVIRONMENT.training_tasks(config, 0)) == 10
    assert len(ENVIRONMENT.held_out_tasks(config, 0, 3)) == 3
    assert len(ENVIRONMENT.splits.test_tasks(config, 0)) == 2

    shared = write(tmp_path, '{"question": "3 +  1?", "answer": 4}', name="held_out.jsonl")
    with pytest.raises(InputError, match=rf"{shared}, line 1: its question is on line 4 of {training} too"):
        ENVIRONMENT.training_tasks(config, 0)


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValidationError, match="there is no scorer 'magic'; allowed are contains, exact, f1"):
        QuestionsConfig(scorer="magic")
    with pytest.raises(ValidationError, match="leave no question to train on"):
        QuestionsConfig(held_out_share=0.5, test_share=0.5)


def test_gsm8k_itself_is_read() -> None:
    folder = os.environ.get("ERL_TEST_DATA")
    if folder is None:
        pytest.skip("ERL_TEST_DATA names no folder with gsm8k_train.jsonl")
    path = str(Path(folder) / "gsm8k_train.jsonl")
    config = QuestionsConfig(training_file=path, source="gsm8k", scorer="numeric")
    training, held_out = ENVIRONMENT.training_tasks(config, 0), ENVIRONMENT.held_out_tasks(config, 0, 747)
    assert len(training) + len(held_out) == 7473
    assert training[0].payload["answer"] == "72"
