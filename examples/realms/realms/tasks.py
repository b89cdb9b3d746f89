"""The tasks of a streamed evaluation: held-out boards of FrozenLake, in realms that training never shows."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from erl_pipeline.config.base import Settings
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.tasks import TASKS, held_out_realms, realm_task, realm_word
from erl_pipeline.environments.grid_games.hidden_words import slots_text
from erl_pipeline.environments.grid_games.tasks import BoardTask
from erl_pipeline.environments.interface import Task
from erl_pipeline.stages.tasks.prepare_tasks import storable_tasks
from storage.errors import InputError
from storage.texts import StorableTexts


class StreamConfig(Settings):
    """The shape of a streamed evaluation. The tasks of a stream are played one after the other, with the
    notes made earlier in the stream."""

    realms: int = Field(default=8, ge=2)
    """Number of held-out realms; at least two, so that one can be given another's note."""
    streams: int = Field(default=16, ge=1)
    """Number of independent streams in each realm."""
    encounters: int = Field(default=6, ge=1)
    """Number of tasks in one stream."""


@dataclass(frozen=True)
class StreamedTask:
    """A task with its place in a streamed evaluation.

    `realm` and `stream` count from 0, `encounter` from 1. `lesson` is the true note of its realm, `foreign`
    that of another realm.
    """

    task: Task
    realm: int
    stream: int
    encounter: int
    lesson: str
    foreign: str


def other_realm(realm: int, stream: int, realms: int) -> int:
    """The realm whose note a stream gets as the foreign one; the streams of a realm take different ones in
    turn."""
    return (realm + 1 + stream % (realms - 1)) % realms


def stream_tasks(
    environment: FrozenLakeConfig, seed: int, shape: StreamConfig, texts: StorableTexts
) -> list[StreamedTask]:
    """The tasks of all streams, realm by realm and stream by stream: all different, and none a training task.

    Args:
        seed: the run's, which chooses what is hidden from the policy.
        texts: counts the texts in which something is replaced.

    Raises InputError where the environment holds out too few realms.
    """
    held_out = held_out_realms(environment)
    if len(held_out) < shape.realms:
        raise InputError(
            f"{shape.realms} realms are asked for, but the environment holds {len(held_out)} out; ask for "
            "fewer, or train with environment.actions: realms and more of environment.realms.held_out"
        )
    count = shape.streams * shape.encounters
    boards = TASKS.held_out_boards(environment, shape.realms * count)
    tasks = [
        storable_tasks(
            [
                realm_task(
                    environment,
                    seed,
                    BoardTask(_task_id(environment, realm, at), board, environment.max_steps),
                    realm,
                )
                for at, board in enumerate(boards[place * count : (place + 1) * count])
            ],
            texts,
        )
        for place, realm in enumerate(held_out[: shape.realms])
    ]
    lessons = [texts.text(lesson(environment, of_realm[0])) for of_realm in tasks]
    return [
        StreamedTask(
            task=task,
            realm=realm,
            stream=number // shape.encounters,
            encounter=number % shape.encounters + 1,
            lesson=lessons[realm],
            foreign=lessons[other_realm(realm, number // shape.encounters, shape.realms)],
        )
        for realm, of_realm in enumerate(tasks)
        for number, task in enumerate(of_realm)
    ]


def _task_id(config: FrozenLakeConfig, realm: int, number: int) -> str:
    return f"frozen_lake-{realm_word(realm)}-{config.board_seed}-{number:05d}"


def lesson(config: FrozenLakeConfig, task: Task) -> str:
    """Where each action word moves: four slots in the compact form, else a sentence."""
    words = {direction: word for word, direction in task.payload["actions"].items()}
    if config.format == "compact":
        return slots_text(words)
    told = ", ".join(f"[{word}] moves {direction}" for direction, word in words.items())
    return f"In realm {task.payload['realm']} the action {told}."
