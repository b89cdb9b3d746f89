"""The training and held-out tasks: a range, and the number in it that is to be found.

The two splits have different ranges, so that no held-out task begins like a training task.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Literal

from erl_pipeline.environments.interface import Task
from guess_number.settings import GuessNumberConfig
from storage.errors import InputError

Split = Literal["training", "held_out"]


def training_tasks(settings: GuessNumberConfig, seed: int) -> list[Task]:
    """Every number of every training range, in a random order. The run's seed changes nothing."""
    return _tasks(settings, "training")


def held_out_tasks(settings: GuessNumberConfig, seed: int, count: int) -> list[Task]:
    """The first `count` of the held-out tasks. Raises `InputError` when there are fewer."""
    found = _tasks(settings, "held_out")
    if count > len(found):
        raise InputError(
            f"evaluation.tasks: {count} held-out tasks are asked for, but there are {len(found)} with "
            f"environment.largest: {settings.largest}, width: {list(settings.width)} and held_out_share: "
            f"{settings.held_out_share}; ask for fewer, or change these"
        )
    return found[:count]


def ranges(settings: GuessNumberConfig, split: Split) -> list[tuple[int, int]]:
    """The ranges of a split, each as its first and its last number."""
    least, most = settings.width
    found = [
        (low, low + width - 1)
        for width in range(least, most + 1)
        for low in range(1, settings.largest - width + 2)
    ]
    random.Random(f"ranges/{settings.split_seed}").shuffle(found)
    held_out = min(len(found) - 1, max(1, round(settings.held_out_share * len(found))))
    return found[:held_out] if split == "held_out" else found[held_out:]


def _tasks(settings: GuessNumberConfig, split: Split) -> list[Task]:
    found = list(_all_of(ranges(settings, split)))
    random.Random(f"tasks/{settings.split_seed}").shuffle(found)
    return found


def _all_of(chosen: Iterable[tuple[int, int]]) -> Iterable[Task]:
    for low, high in chosen:
        for number in range(low, high + 1):
            payload = {"low": low, "high": high, "number": number}
            task_type = f"guess_number-{high - low + 1}"
            yield Task(f"guess_number-{low}-{high}-{number}", task_type, "guess_number", payload)
