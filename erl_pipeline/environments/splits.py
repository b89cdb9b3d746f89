"""What tells an environment's tasks apart: splits, files, and what is known of a task without playing it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal

from erl_pipeline.config.base import SettingsT
from erl_pipeline.config.plugins import NO_BYTES

if TYPE_CHECKING:
    from erl_pipeline.environments.interface import Task

KeptSplit = Literal["held-out", "test"]
FindSplit = Callable[[Mapping[str, Any]], KeptSplit | None]
"""From a payload to the split that keeps its problem from training; None where none does. It must take any
JSON object, as `Splits.task_key` must."""


def payload_key(payload: Mapping[str, Any]) -> str:
    """A task as the text of its whole payload."""
    return json.dumps(payload, sort_keys=True)


def _no_test_tasks(settings: Any, seed: int) -> Sequence[Task]:
    return ()


def _nothing_left_out(settings: Any) -> Sequence[str]:
    return ()


def _quick(settings: Any) -> bool:
    return True


@dataclass(frozen=True)
class Splits(Generic[SettingsT]):
    """Tasks beside the training and held-out ones, and what keeps the splits apart; all of it is optional."""

    test_tasks: Callable[[SettingsT, int], Sequence[Task]] = _no_test_tasks
    """The tasks of a third split, which `compare` alone reports on: none of them equals a training or a
    held-out task, so that no setting was tuned on them. The number is the run's seed. Empty where these
    settings give no such split."""
    test_needs: str = field(default="", metadata=NO_BYTES)
    """The settings with which `test_tasks` gives some, such as `test_boards: 256`."""
    task_key: Callable[[Mapping[str, Any]], str] = payload_key
    """The key of a problem, from a task's payload: tasks with the same key are the same problem, so that
    held-out tasks are never trained on, whatever their ids are. It must take any JSON object, since payloads
    are also read from imported rows."""
    kept_split: Callable[[SettingsT, int], FindSplit] | None = None
    """Arguments: the settings and the run's seed. Gives a function that tells of a payload whether its
    problem is held out or in the test split, by its content alone and however many tasks were asked for.
    None: only the tasks that `held_out_tasks` and `test_tasks` give for a run are kept from training."""
    twin_key: Callable[[Mapping[str, Any]], str] | None = field(default=None, metadata=NO_BYTES)
    """A text that is equal for payloads which are one problem seen in different ways, such as a board and its
    mirror image; `env show` counts held-out tasks with such a twin in training. None: tasks have no twins."""
    from_file: Callable[[SettingsT, int, Path], Sequence[Task]] | None = None
    """The tasks of a file; the number is the run's seed. Raises `InputError` naming the file, the line and
    what is wrong."""
    left_out: Callable[[SettingsT], Sequence[str]] = field(default=_nothing_left_out, metadata=NO_BYTES)
    """What of the files in these settings is no task, a sentence for each reason with number and names, for
    people. Raises `InputError` for bad files."""
    difficulty: Callable[[SettingsT, Task], float] | None = None
    """How hard a task is: the larger the number, the harder the task, such as the moves of its shortest
    solution. Only the order of the numbers counts. None where the environment cannot tell."""
    quick_to_list: Callable[[SettingsT], bool] = field(default=_quick, metadata=NO_BYTES)
    """Whether the training and held-out tasks are listed in seconds. `config check`, `plan` and the start of
    `train` then list them, so that too few or wrong ones are found before anything is trained."""
