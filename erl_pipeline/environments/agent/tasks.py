"""The tasks of an agent, from files of JSON lines."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erl_pipeline.environments.agent.settings import AgentConfig
from erl_pipeline.environments.interface import FindSplit, KeptSplit, Task
from erl_pipeline.environments.scorers.interface import scorer_named
from erl_pipeline.environments.scorers.texts import reading_key
from erl_pipeline.environments.tasks import files_in, filled_text, in_random_order, json_lines
from storage.errors import ConfigError, InputError


@dataclass(frozen=True)
class _Tasks:
    training: Sequence[Task]
    held_out: Sequence[Task]
    test: Sequence[Task]


def files(config: AgentConfig) -> dict[str, Path]:
    """The files that the settings name."""
    return {**files_in(config, "training_file", "held_out_file"), **agent_files(config)}


def agent_files(config: AgentConfig) -> dict[str, Path]:
    """Those that the agent's command needs."""
    return {f"files.{name}": Path(path) for name, path in config.files.items() if path is not None}


def training_tasks(config: AgentConfig, seed: int) -> list[Task]:
    return list(_split(config).training)


def held_out_tasks(config: AgentConfig, seed: int, count: int) -> list[Task]:
    found = _split(config).held_out
    if count > len(found):
        raise InputError(
            f"evaluation.tasks: {count} held-out tasks are asked for, but there are {len(found)}; set "
            "environment.held_out_file or a larger environment.held_out_share"
        )
    return list(found[:count])


def test_tasks(config: AgentConfig, seed: int) -> list[Task]:
    """The tasks that are set aside; none with `test_share: 0`."""
    return list(_split(config).test)


def tasks_from_file(config: AgentConfig, seed: int, path: Path) -> list[Task]:
    return _read(config, path)


def task_key(payload: Mapping[str, Any]) -> str:
    """The prompt alone: with another answer or further fields it is the same problem, and so it is in other
    case or in other signs of Unicode."""
    return reading_key(str(payload.get("prompt")))


def kept_split(config: AgentConfig, seed: int) -> FindSplit:
    """Tells whether a task is held out or set aside, by its prompt."""
    found = _split(config)
    kept: dict[str, KeptSplit] = dict.fromkeys(
        (task_key(task.payload) for task in found.held_out), "held-out"
    )
    kept.update(dict.fromkeys((task_key(task.payload) for task in found.test), "test"))
    return lambda payload: kept.get(task_key(payload))


def _split(config: AgentConfig) -> _Tasks:
    """Raises ConfigError where something is missing that has to be given."""
    if config.training_file is None:
        raise ConfigError("environment.training_file: give a file of tasks, one JSON object a line")
    if config.command is None and config.function is None and config.url is None:
        raise ConfigError(
            "environment.command: give the agent's command, or environment.function, or environment.url"
        )
    training = _read(config, Path(config.training_file))
    if config.held_out_file is None:
        drawn = _in_random_order(training, config)
        test = drawn[: round(config.test_share * len(drawn))]
        held_out = drawn[len(test) :][: round(config.held_out_share * len(drawn))]
        return _Tasks(_without(training, (*test, *held_out)), held_out, test)
    apart = _read(config, Path(config.held_out_file))
    lines = {task_key(task.payload): number for number, task in enumerate(training, start=1)}
    for task in apart:
        if task_key(task.payload) in lines:
            raise InputError(
                f"task file {config.held_out_file}: the prompt of task {task.task_id} is in "
                f"{config.training_file} too; a policy would be evaluated on what it was trained on"
            )
    test = _in_random_order(apart, config)[: round(config.test_share * len(apart))]
    return _Tasks(training, _without(apart, test), test)


def _in_random_order(tasks: Sequence[Task], config: AgentConfig) -> list[Task]:
    return in_random_order(tasks, lambda task: task_key(task.payload), f"agent/{config.split_seed}")


def _without(tasks: Sequence[Task], taken: Sequence[Task]) -> list[Task]:
    ids = {task.task_id for task in taken}
    return [task for task in tasks if task.task_id not in ids]


def _read(config: AgentConfig, path: Path) -> list[Task]:
    """Raises `InputError` naming the file, the line and what is wrong with it."""
    seen: dict[tuple[str, str], int] = {}
    scorer = scorer_named(config.scorer) if config.reward == "scorer" else None

    def parse(number: int, record: dict[str, Any]) -> Task:
        payload = {**record, "prompt": filled_text("prompt", record["prompt"])}
        if scorer is not None:
            scorer.check_task(payload)
        place = task_key(payload)
        given = payload.pop("id", None)
        kind = payload.pop("task_type", "agent")
        task_id = f"agent-{hashlib.sha256(place.encode()).hexdigest()[:12]}" if given is None else str(given)
        for what, value in (("prompt", place), ("id", task_id)):
            if (earlier := seen.setdefault((what, value), number)) != number:
                raise ValueError(f"its {what} is already on line {earlier}: {value[:80]!r}")
        return Task(filled_text("id", task_id), filled_text("task_type", kind), "agent", payload)

    keys = ("prompt",) if scorer is None else ("prompt", "answer")
    found = [task for _, task in json_lines(path, "task file", keys, parse)]
    if not found:
        raise InputError(f"task file {path} holds no task")
    return found
