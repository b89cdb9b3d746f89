"""The tasks of a streamed evaluation: streams of held-out tasks in held-out realms."""

from __future__ import annotations

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.installed import plugins
from erl_pipeline.config.stream import StreamConfig
from erl_pipeline.stages.stream_scores import StreamedTask, other_realm
from storage.errors import InputError


def stream_tasks(environment: PluginSettings, seed: int, shape: StreamConfig) -> list[StreamedTask]:
    """The tasks of all streams, realm by realm and stream by stream; `seed` is the run's.

    Raises InputError where the environment holds too few realms out.
    """
    offered = plugins("environments")[environment.type].value.streams
    held_out = () if offered is None else offered.realms(environment)
    if offered is None or len(held_out) < shape.realms:
        raise InputError(
            f"evaluation.stream.realms: {shape.realms} are asked for, but environment {environment.type} "
            f"holds {len(held_out)} out; ask for fewer"
        )
    by_realm = offered.tasks(environment, seed, shape.realms, shape.streams * shape.encounters)
    tasks = [by_realm[name] for name in held_out[: shape.realms]]
    lessons = [offered.lesson(environment, of_realm[0]) for of_realm in tasks]
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
