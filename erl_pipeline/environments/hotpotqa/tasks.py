"""The training, held-out and test tasks of a run: three parts of the questions of one file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from erl_pipeline.environments.hotpotqa.question_file import Question, read_questions
from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.same_text import reading_key
from erl_pipeline.environments.splits import FindSplit, KeptSplit
from storage.errors import InputError

Split = Literal["training", "held_out", "test"]


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
    kept: dict[str, KeptSplit] = {}
    splits: tuple[tuple[Split, KeptSplit], ...] = (("held_out", "held-out"), ("test", "test"))
    for split, name in splits:
        kept.update((question_key(task.payload), name) for task in _tasks(config, split))
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
    chosen = _splits(config, {_words(task) for task in tasks})
    own = [task for task in tasks if chosen[_words(task)] == split]
    if split == "held_out":
        # Ordered by hash, so that the first few are not simply those that the file begins with.
        own.sort(key=lambda task: _place(config, _words(task)))
    return own


def _words(task: Task) -> str:
    """What a question's split is drawn from."""
    return " ".join(str(task.payload["question"]).lower().split())


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


def _task(question: Question) -> Task:
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
