"""The training, held-out and test tasks of a run: three parts of the questions of one file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig
from erl_pipeline.environments.interface import FindSplit, Split, Task
from erl_pipeline.environments.scorers.texts import reading_key
from erl_pipeline.environments.tasks import KEPT, file_text, filled_text, json_lines, with_keys
from storage.errors import InputError


def training_tasks(config: HotpotQAConfig, seed: int) -> list[Task]:
    """The questions that are in no other split. The run's seed is not used, since nothing is hidden here."""
    return _tasks(config, "training")


def held_out_tasks(config: HotpotQAConfig, seed: int, count: int) -> list[Task]:
    """The first `count` held-out questions. Raises `InputError` where there are fewer."""
    tasks = _tasks(config, "held_out")
    if count > len(tasks):
        raise InputError(
            f"evaluation.tasks: {count} held-out tasks are asked for, but {config.task_file} has "
            f"{len(tasks)} with environment.held_out_share: {config.held_out_share:g}; ask for fewer, or "
            "hold out more"
        )
    return tasks[:count]


def test_tasks(config: HotpotQAConfig, seed: int) -> list[Task]:
    """The questions of the third split."""
    return _tasks(config, "test")


def question_key(payload: Mapping[str, Any]) -> str:
    """The words of the question: with another id, in other case or in other signs of Unicode it is the same
    problem."""
    return reading_key(str(payload.get("question")))


def kept_split(config: HotpotQAConfig, seed: int) -> FindSplit:
    """Tells whether a question is kept from training. The run's seed changes nothing."""
    kept = {
        question_key(task.payload): name for split, name in KEPT.items() for task in _tasks(config, split)
    }
    return lambda payload: kept.get(question_key(payload))


def question_path(config: HotpotQAConfig) -> Path:
    """The file of the questions. Raises `InputError` where the setting is missing."""
    if config.task_file is None:
        raise InputError(
            "environment.task_file is not set; name a file of questions in HotpotQA's distractor format"
        )
    return Path(config.task_file)


def _tasks(config: HotpotQAConfig, split: Split) -> list[Task]:
    tasks = [_task(question) for question in read_questions(question_path(config))]
    chosen = _splits(config, {_question_words(task) for task in tasks})
    own = [task for task in tasks if chosen[_question_words(task)] == split]
    if split == "held_out":
        # Ordered by hash, so that the first few are not simply those that the file begins with.
        own.sort(key=lambda task: _place(config, _question_words(task)))
    return own


def _question_words(task: Task) -> str:
    """What a question's split is drawn from."""
    return question_key(task.payload)


def _splits(config: HotpotQAConfig, keys: set[str]) -> dict[str, Split]:
    """Which split each question is in; questions with the same words are in the same split."""
    ordered = sorted(keys, key=lambda key: _place(config, key))
    test = round(config.test_share * len(ordered))
    held_out = round(config.held_out_share * len(ordered))
    return {
        key: "test" if place < test else "held_out" if place < test + held_out else "training"
        for place, key in enumerate(ordered)
    }


def _place(config: HotpotQAConfig, key: str) -> str:
    return hashlib.sha256(f"{config.split_seed}/{key}".encode()).hexdigest()


def _task(question: HotpotQuestion) -> Task:
    return Task(
        task_id=f"hotpotqa-{question.question_id}",
        task_type=f"hotpotqa-{question.kind}",
        environment="hotpotqa",
        payload={
            "question": question.question,
            "answer": question.answer,
            "supporting": list(question.supporting),
            "level": question.level,
        },
    )


_KEYS = ("_id", "question", "answer", "supporting_facts", "context", "type", "level")


@dataclass(frozen=True)
class Passage:
    """A page of the encyclopedia."""

    title: str
    text: str


@dataclass(frozen=True)
class HotpotQuestion:
    """One question. `supporting` are the titles of the pages that its answer follows from."""

    question_id: str
    question: str
    answer: str
    supporting: tuple[str, ...]
    context: tuple[Passage, ...]
    kind: str
    level: str


def read_questions(path: Path) -> list[HotpotQuestion]:
    """The questions of a file in HotpotQA's official distractor format, in its order.

    Raises `InputError` naming the file, the place of the question in the list and what is wrong with it.
    """
    try:
        records = json.loads(file_text(path, "question file"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"question file {path} is not JSON: {error}") from error
    if not isinstance(records, list) or not records:
        raise InputError(f"question file {path} holds no questions; needed: a list of objects")
    questions: list[HotpotQuestion] = []
    places: dict[str, int] = {}
    for number, record in enumerate(records, start=1):
        try:
            question = _question(with_keys(record, _KEYS))
            if question.question_id in places:
                raise ValueError(
                    f"_id {question.question_id!r} is already that of question {places[question.question_id]}"
                )
        except ValueError as error:
            raise InputError(f"question file {path}, question {number}: {error}") from error
        places[question.question_id] = number
        questions.append(question)
    return questions


def read_passages(path: Path) -> list[Passage]:
    """The pages of a file of JSON lines. Raises `InputError` naming the file and the line."""

    def parse(number: int, record: dict[str, Any]) -> Passage:
        title, text = (filled_text(key, record[key]) for key in ("title", "text"))
        return Passage(" ".join(title.split()), text)

    return [passage for _, passage in json_lines(path, "passage file", ("title", "text"), parse)]


def different_passages(questions: Iterable[HotpotQuestion], further: Iterable[Passage] = ()) -> list[Passage]:
    """The pages of all contexts and the further ones, each once, in the order in which they come."""
    of_contexts = (passage for question in questions for passage in question.context)
    return list(dict.fromkeys([*of_contexts, *further]))


def _question(record: Mapping[str, Any]) -> HotpotQuestion:
    context = _context(record["context"])
    return HotpotQuestion(
        question_id=filled_text("_id", record["_id"]),
        question=filled_text("question", record["question"]),
        answer=filled_text("answer", record["answer"]),
        supporting=_supporting(record["supporting_facts"], {passage.title for passage in context}),
        context=context,
        kind=filled_text("type", record["type"]),
        level=filled_text("level", record["level"]),
    )


def _context(value: Any) -> tuple[Passage, ...]:
    if not isinstance(value, list) or not value or not all(map(_is_page, value)):
        raise ValueError("context: a list of [title, [sentences]] is needed")
    return tuple(Passage(" ".join(title.split()), "".join(sentences).strip()) for title, sentences in value)


def _is_page(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    title, sentences = value
    return (
        isinstance(title, str)
        and bool(title.strip())
        and isinstance(sentences, list)
        and all(isinstance(sentence, str) for sentence in sentences)
    )


def _supporting(value: Any, titles: set[str]) -> tuple[str, ...]:
    pairs = value if isinstance(value, list) else []
    if not pairs or not all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs
    ):
        raise ValueError("supporting_facts: a list of [title, number of the sentence] is needed")
    found = tuple(dict.fromkeys(" ".join(title.split()) for title, _ in pairs))
    for title in found:
        if title not in titles:
            raise ValueError(f"supporting_facts: the context has no page {title!r}")
    return found
