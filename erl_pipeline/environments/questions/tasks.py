"""The training, held-out and test tasks of a run: no question is in two of them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from erl_pipeline.environments.interface import FindSplit, KeptSplit, Task
from erl_pipeline.environments.questions.settings import QuestionsConfig
from erl_pipeline.environments.scorers import scorer_named
from erl_pipeline.environments.scorers.texts import reading_key
from erl_pipeline.environments.tasks import files_in, filled_text, in_random_order, json_lines
from storage.errors import ConfigError, InputError


@dataclass(frozen=True)
class QuestionSplits:
    """The questions of each split; training is in the order of its file, the others in a random one."""

    training: Sequence[QuestionRecord]
    held_out: Sequence[QuestionRecord]
    test: Sequence[QuestionRecord]


def files(config: QuestionsConfig) -> dict[str, Path]:
    """The files that the settings name. Raises ConfigError where `training_file` is not given."""
    if config.training_file is None:
        raise ConfigError("environment.training_file: give a file of questions, one JSON object a line")
    return files_in(config, "training_file", "held_out_file")


def training_tasks(config: QuestionsConfig, seed: int) -> list[Task]:
    """All questions of the training file that are neither held out nor set aside. The run's seed changes
    nothing."""
    return _as_tasks(config, split(config).training)


def held_out_tasks(config: QuestionsConfig, seed: int, count: int) -> list[Task]:
    """The first `count` held-out questions. Raises `InputError` when there are fewer."""
    found = split(config).held_out
    if count > len(found):
        more = "held_out_file" if config.held_out_file is not None else "held_out_share"
        raise InputError(
            f"evaluation.tasks: {count} held-out questions are asked for, but there are {len(found)}; ask "
            f"for fewer, or give more by environment.{more}"
        )
    return _as_tasks(config, found[:count])


def test_tasks(config: QuestionsConfig, seed: int) -> list[Task]:
    """The questions that are set aside; none with `test_share: 0`."""
    return _as_tasks(config, split(config).test)


def tasks_from_file(config: QuestionsConfig, seed: int, path: Path) -> list[Task]:
    """The questions of a file, in the same form as the training file."""
    return _as_tasks(config, _read(config, path))


def split(config: QuestionsConfig) -> QuestionSplits:
    """All questions, by split. Raises `InputError` for bad files, and for a question in both files."""
    paths = files(config)
    training = _read(config, paths["training_file"])
    if "held_out_file" not in paths:
        test, rest = _set_aside(training, config)
        held_out = rest[: round(config.held_out_share * len(training))]
        taken = {each.key for each in (*test, *held_out)}
        return QuestionSplits([each for each in training if each.key not in taken], held_out, test)
    apart = _read(config, paths["held_out_file"])
    _refuse_shared(training, apart, paths)
    test, held_out = _set_aside(apart, config)
    return QuestionSplits(training, held_out, test)


def task_key(payload: Mapping[str, Any]) -> str:
    """The question alone: with another answer or further fields it is the same problem."""
    question = payload.get("question")
    return reading_key(question) if isinstance(question, str) else json.dumps(question)


def kept_split(config: QuestionsConfig, seed: int) -> FindSplit:
    """Tells whether a question is kept from training. The run's seed changes nothing."""
    found = split(config)
    kept: dict[str, KeptSplit] = dict.fromkeys((each.key for each in found.held_out), "held-out")
    kept.update(dict.fromkeys((each.key for each in found.test), "test"))
    return lambda payload: kept.get(task_key(payload))


def _read(config: QuestionsConfig, path: Path) -> list[QuestionRecord]:
    return read_questions(path, config.source, scorer_named(config.scorer).check_task)


def _set_aside(
    questions: Sequence[QuestionRecord], config: QuestionsConfig
) -> tuple[Sequence[QuestionRecord], Sequence[QuestionRecord]]:
    """The test questions, and all others, in a random order that does not depend on the order of the file."""
    shuffled = in_random_order(questions, lambda each: each.place, f"questions/{config.split_seed}")
    test = round(config.test_share * len(shuffled))
    return shuffled[:test], shuffled[test:]


def _refuse_shared(
    training: Sequence[QuestionRecord], held_out: Sequence[QuestionRecord], paths: Mapping[str, Path]
) -> None:
    lines = {each.key: each.line for each in training}
    for each in held_out:
        if each.key in lines:
            raise InputError(
                f"question file {paths['held_out_file']}, line {each.line}: its question is on line "
                f"{lines[each.key]} of {paths['training_file']} too; a policy would be evaluated on what it "
                "was trained on"
            )


def _as_tasks(config: QuestionsConfig, questions: Sequence[QuestionRecord]) -> list[Task]:
    return [
        Task(
            each.task_id or f"questions-{hashlib.sha256(each.place.encode()).hexdigest()[:12]}",
            each.task_type or config.task_type,
            "questions",
            each.payload,
        )
        for each in questions
    ]


_MARK = "####"


@dataclass(frozen=True)
class QuestionRecord:
    """One line. `fields` are those beyond question, answer, id and kind; `line` is its number in the file."""

    question: str
    answer: str
    line: int
    task_id: str | None = None
    task_type: str | None = None
    fields: Mapping[str, Any] | None = None

    @property
    def key(self) -> str:
        """What tells the question apart from others."""
        return reading_key(self.question)

    @property
    def place(self) -> str:
        """What its id and its place in a split are drawn from."""
        return " ".join(self.question.split()).casefold()

    @property
    def payload(self) -> dict[str, Any]:
        """All that a task's environment and scorer get."""
        return {**(self.fields or {}), "question": self.question, "answer": self.answer}


def read_questions(
    path: Path,
    source: Literal["lines", "gsm8k"],
    check: Callable[[Mapping[str, Any]], None] = lambda payload: None,
) -> list[QuestionRecord]:
    """The questions of a file, in its order; blank lines are skipped. `check`: raises `ValueError`, saying
    what is wrong, for the payload of a task that cannot be scored.

    Raises `InputError` naming the file, the line and what is wrong with it; two lines with the same question
    or the same id are wrong too.
    """
    seen: dict[tuple[str, str], int] = {}

    def parse(number: int, record: dict[str, Any]) -> QuestionRecord:
        question = _question(number, record, source)
        check(question.payload)
        for what, value in (("question", question.key), ("id", question.task_id)):
            if value is not None and (earlier := seen.setdefault((what, value), number)) != number:
                raise ValueError(f"its {what} is already on line {earlier}: {value[:80]!r}")
        return question

    found = [question for _, question in json_lines(path, "question file", ("question", "answer"), parse)]
    if not found:
        raise InputError(f"question file {path} holds no question")
    return found


def _question(number: int, record: dict[str, Any], source: Literal["lines", "gsm8k"]) -> QuestionRecord:
    """Raises `ValueError` saying what is wrong."""
    question = filled_text("question", record.pop("question"))
    answer = record.pop("answer")
    if isinstance(answer, int | float) and not isinstance(answer, bool) and math.isfinite(answer):
        answer = str(answer)
    answer = filled_text("answer", answer)
    ends = any(each.startswith(_MARK) for each in answer.splitlines()[1:])
    if source == "gsm8k":
        answer = _after_mark(answer)
    elif ends:
        raise ValueError(
            f"the answer is a solution that ends in a line `{_MARK} ...`; set environment.source: gsm8k"
        )
    names = {name: _optional_text(name, record.pop(name, None)) for name in ("id", "task_type")}
    return QuestionRecord(question, answer, number, names["id"], names["task_type"], record)


def _after_mark(solution: str) -> str:
    _, mark, answer = solution.rpartition(_MARK)
    if not mark or not answer.strip():
        raise ValueError(
            f"answer: its last line has to be `{_MARK} ` and the final answer; for plain answers set "
            "environment.source: lines"
        )
    return answer.strip()


def _optional_text(name: str, value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return None if value is None else filled_text(name, value)
