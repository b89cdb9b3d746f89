"""FrozenLake as an environment: the game in messages."""

from __future__ import annotations

from collections.abc import Sequence

from erl_pipeline.environments.frozen_lake.game import FrozenLake, game_of
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.interface import Observation, Task, Transition
from erl_pipeline.environments.messages import AssistantTurn, ToolSchema, user_message


class FrozenLakeEnvironment:
    """The attempts of one episode. It computes everything immediately and never waits."""

    def __init__(self, game: FrozenLake) -> None:
        self._game = game

    @property
    def instructions(self) -> str:
        return self._game.instructions

    @property
    def tools(self) -> Sequence[ToolSchema]:
        """Empty: actions are words."""
        return ()

    async def reset(self) -> Observation:
        return self._game.reset()

    async def step(self, turn: AssistantTurn) -> Transition:
        moved = self._game.step(turn.text)
        return Transition(
            messages=[user_message(moved.observation)],
            reward=moved.reward,
            done=moved.done,
            metrics={"invalid_turns": 0.0 if moved.valid else 1.0},
        )

    async def feedback(self) -> str:
        return self._game.feedback()

    def trace(self) -> str:
        return self._game.trace()

    async def close(self) -> None:
        """There is nothing to release."""


def open_frozen_lake(config: FrozenLakeConfig, task: Task) -> FrozenLakeEnvironment:
    """The environment of a task made by `tasks.training_tasks` or `tasks.held_out_tasks`."""
    return FrozenLakeEnvironment(game_of(config, task))
