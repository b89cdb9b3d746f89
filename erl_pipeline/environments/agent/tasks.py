"""The tasks of an agent, from files of JSON lines."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erl_pipeline.environments.agent.settings import AgentConfig
from erl_pipeline.environments.interface import FindSplit, Task
from erl_pipeline.environments.scorers.interface import scorer_named
from erl_pipeline.environments.tasks import filled_text, json_lines
from storage.errors import ConfigError, InputError


@dataclass(frozen=True)
class _Tasks:
    training: Sequence[Task]
    held_out: Sequence[Task]


def files(config: AgentConfig) -> dict[str, Path]:
    """The files that the settings name."""
    named = {"training_file": config.training_file, "held_out_file": config.held_out_file}
    return {
        **{name: Path(path) for name, path in named.items() if path is not None},
        **agent_files(config),
    }


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


def tasks_from_file(config: AgentConfig, seed: int, path: Path) -> list[Task]:
    return _read(config, path)


def task_key(payload: Mapping[str, Any]) -> str:
    """The prompt alone: with another answer or further fields it is the same problem."""
    return " ".join(str(payload.get("prompt")).split()).casefold()


def kept_split(config: AgentConfig, seed: int) -> FindSplit:
    """Tells whether a task is held out, by its prompt."""
    kept = {task_key(task.payload) for task in _split(config).held_out}
    return lambda payload: "held-out" if task_key(payload) in kept else None


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
        drawn = sorted(training, key=lambda task: task_key(task.payload))
        random.Random(f"agent/{config.split_seed}").shuffle(drawn)
        held_out = drawn[: round(config.held_out_share * len(drawn))]
        ids = {task.task_id for task in held_out}
        return _Tasks([task for task in training if task.task_id not in ids], held_out)
    held_out = _read(config, Path(config.held_out_file))
    lines = {task_key(task.payload): number for number, task in enumerate(training, start=1)}
    for task in held_out:
        if task_key(task.payload) in lines:
            raise InputError(
                f"task file {config.held_out_file}: the prompt of task {task.task_id} is in "
                f"{config.training_file} too; a policy would be evaluated on what it was trained on"
            )
    return _Tasks(training, held_out)


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
