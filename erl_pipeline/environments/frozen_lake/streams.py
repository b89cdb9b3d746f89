"""FrozenLake's part in streamed evaluation: held-out boards in realms that training never shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from erl_pipeline.environments.frozen_lake.realms import held_out_realms, realm_word
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.task_file import BoardTask
from erl_pipeline.environments.frozen_lake.tasks import board_task, held_out_boards
from erl_pipeline.environments.hidden_words.hearsay import slots_text
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.splits import TaskStreams


def _realms(config: FrozenLakeConfig) -> Sequence[str]:
    return [_task_type(realm) for realm in held_out_realms(config)]


def _tasks(config: FrozenLakeConfig, seed: int, realms: int, count: int) -> Mapping[str, Sequence[Task]]:
    boards = held_out_boards(config, realms * count)
    made: dict[str, list[Task]] = {}
    for place, realm in enumerate(held_out_realms(config)[:realms]):
        made[_task_type(realm)] = [
            board_task(
                config,
                seed,
                BoardTask(f"{_task_type(realm)}-{config.board_seed}-{number:05d}", board, config.max_steps),
                realm,
            )
            for number, board in enumerate(boards[place * count : (place + 1) * count])
        ]
    return made


def _task_type(realm: int) -> str:
    return f"frozen_lake-{realm_word(realm)}"


def lesson(config: FrozenLakeConfig, task: Task) -> str:
    """Where each action word moves: four slots in the compact form, else a sentence."""
    words = {direction: word for word, direction in task.payload["actions"].items()}
    if config.format == "compact":
        return slots_text(words)
    told = ", ".join(f"[{word}] moves {direction}" for direction, word in words.items())
    return f"In realm {task.payload['realm']} the action {told}."


STREAMS = TaskStreams(realms=_realms, tasks=_tasks, lesson=lesson)
