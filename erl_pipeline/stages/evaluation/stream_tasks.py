"""The tasks of a streamed evaluation: streams of held-out tasks in held-out realms."""

from __future__ import annotations

from dataclasses import dataclass

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.plugins.installed import plugins
from erl_pipeline.config.stream import StreamConfig
from erl_pipeline.environments.interface import Task
from erl_pipeline.stages.tasks.prepare_tasks import storable_tasks
from storage.errors import InputError
from storage.texts import StorableTexts


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
    environment: PluginSettings, seed: int, shape: StreamConfig, texts: StorableTexts
) -> list[StreamedTask]:
    """The tasks of all streams, realm by realm and stream by stream; `seed` is the run's, and `texts` counts
    the texts in which something is replaced.

    Raises InputError where the environment holds out too few realms.
    """
    offered = plugins("environments")[environment.type].value.splits.streams
    held_out = () if offered is None else offered.realms(environment)
    if offered is None or len(held_out) < shape.realms:
        raise InputError(
            f"evaluation.stream.realms: {shape.realms} are asked for, but environment {environment.type} "
            f"holds {len(held_out)} out; ask for fewer"
        )
    by_realm = offered.tasks(environment, seed, shape.realms, shape.streams * shape.encounters)
    tasks = [storable_tasks(by_realm[name], texts) for name in held_out[: shape.realms]]
    lessons = [texts.text(offered.lesson(environment, of_realm[0])) for of_realm in tasks]
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
