"""The training, held-out and test tasks of a run: no question is in two of them."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.questions.question_file import Question, read_questions
from erl_pipeline.environments.questions.settings import QuestionsConfig
from erl_pipeline.environments.same_text import reading_key
from erl_pipeline.environments.scorers import scorer_named
from erl_pipeline.environments.splits import FindSplit, KeptSplit
from storage.errors import ConfigError, InputError


@dataclass(frozen=True)
class Split:
    """The questions of each split; training is in the order of its file, the others in a random one."""

    training: Sequence[Question]
    held_out: Sequence[Question]
    test: Sequence[Question]


def files(config: QuestionsConfig) -> dict[str, Path]:
    """The files that the settings name. Raises ConfigError where `training_file` is not given."""
    if config.training_file is None:
        raise ConfigError("environment.training_file: give a file of questions, one JSON object a line")
    named = {"training_file": config.training_file, "held_out_file": config.held_out_file}
    return {name: Path(path) for name, path in named.items() if path is not None}


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


def split(config: QuestionsConfig) -> Split:
    """All questions, by split. Raises `InputError` for bad files, and for a question in both files."""
    paths = files(config)
    training = _read(config, paths["training_file"])
    if "held_out_file" not in paths:
        test, rest = _set_aside(training, config)
        held_out = rest[: round(config.held_out_share * len(training))]
        taken = {each.key for each in (*test, *held_out)}
        return Split([each for each in training if each.key not in taken], held_out, test)
    apart = _read(config, paths["held_out_file"])
    _refuse_shared(training, apart, paths)
    test, held_out = _set_aside(apart, config)
    return Split(training, held_out, test)


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


def _read(config: QuestionsConfig, path: Path) -> list[Question]:
    return read_questions(path, config.source, scorer_named(config.scorer).check_task)


def _set_aside(
    questions: Sequence[Question], config: QuestionsConfig
) -> tuple[Sequence[Question], Sequence[Question]]:
    """The test questions, and all others, in a random order that does not depend on the order of the file."""
    shuffled = sorted(questions, key=lambda each: each.place)
    random.Random(f"questions/{config.split_seed}").shuffle(shuffled)
    test = round(config.test_share * len(shuffled))
    return shuffled[:test], shuffled[test:]


def _refuse_shared(
    training: Sequence[Question], held_out: Sequence[Question], paths: Mapping[str, Path]
) -> None:
    lines = {each.key: each.line for each in training}
    for each in held_out:
        if each.key in lines:
            raise InputError(
                f"question file {paths['held_out_file']}, line {each.line}: its question is on line "
                f"{lines[each.key]} of {paths['training_file']} too; a policy would be evaluated on what it "
                "was trained on"
            )


def _as_tasks(config: QuestionsConfig, questions: Sequence[Question]) -> list[Task]:
    return [
        Task(
            each.task_id or f"questions-{hashlib.sha256(each.place.encode()).hexdigest()[:12]}",
            each.task_type or config.task_type,
            "questions",
            each.payload,
        )
        for each in questions
    ]
