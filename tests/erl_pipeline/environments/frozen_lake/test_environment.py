from __future__ import annotations

import asyncio

from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.messages import AssistantTurn

PAYLOAD = {
    "board": ["SGF", "FFF"],
    "max_steps": 3,
    "actions": {"a": "up", "b": "right", "c": "down", "d": "left"},
    "symbols": {"player": "@", "frozen": "#", "hole": "$", "goal": "&"},
}


async def play() -> None:
    settings = FrozenLakeConfig(rows=(2, 2), columns=(3, 3), path_length=(1, 3), max_steps=3)
    environment = ENVIRONMENT.open(settings, Task("task", "frozen_lake-2x3", "frozen_lake", PAYLOAD))
    assert (environment.instructions, environment.tools) == ("", ())
    assert await environment.reset() == "@ & # # # #"

    invalid = await environment.step(AssistantTurn("jump"))
    assert invalid.messages == [{"role": "user", "content": "bad c0"}]
    assert (invalid.reward, invalid.done, invalid.metrics) == (0.0, False, {"invalid_turns": 1.0})

    end = await environment.step(AssistantTurn("right b"))
    assert (end.reward, end.done, end.metrics) == (1.0, True, {"invalid_turns": 0.0})
    assert await environment.feedback() == "goal"
    assert environment.trace() == ". . bad c0 right b goal c1 . . . ."
    await environment.close()


def test_the_game_in_messages() -> None:
    asyncio.run(play())
