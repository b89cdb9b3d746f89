"""Sokoban as an environment: the game in messages."""

from __future__ import annotations

from collections.abc import Sequence

from erl_pipeline.environments.interface import Observation, Task, Transition
from erl_pipeline.environments.messages import AssistantTurn, ToolSchema, user_message
from erl_pipeline.environments.sokoban.deadlocks import deadlocks
from erl_pipeline.environments.sokoban.game import Sokoban, TurnResult, game_of
from erl_pipeline.environments.sokoban.settings import SokobanConfig


class SokobanEnvironment:
    """The attempts of one episode. It computes everything immediately and never waits."""

    def __init__(self, game: Sokoban) -> None:
        self._game = game
        self._on_goals = 0
        self._deadlock = False

    @property
    def instructions(self) -> str:
        return self._game.instructions

    @property
    def tools(self) -> Sequence[ToolSchema]:
        """Empty: actions are words."""
        return ()

    async def reset(self) -> Observation:
        self._on_goals = 0
        self._deadlock = False
        return self._game.reset()

    async def step(self, turn: AssistantTurn) -> Transition:
        result = self._game.step(turn.text)
        return Transition(
            messages=[user_message(result.observation)],
            reward=result.reward,
            done=result.done,
            metrics=self._metrics(result),
        )

    async def feedback(self) -> str:
        return self._game.feedback()

    def trace(self) -> str:
        return self._game.trace()

    async def close(self) -> None:
        """There is nothing to release."""

    def _metrics(self, result: TurnResult) -> dict[str, float]:
        """Numbers whose sums over an attempt are: boxes on goals at its end, whether it ended in a deadlock
        (0 or 1), and counts of pushes, of moves without effect and of turns without a valid action."""
        boxes = self._game.state.boxes
        on_goals, deadlock = self._game.board.boxes_on_goals(boxes), bool(deadlocks(self._game.board, boxes))
        changes = {
            "boxes_on_goals": float(on_goals - self._on_goals),
            "deadlock": float(deadlock - self._deadlock),
        }
        self._on_goals, self._deadlock = on_goals, deadlock
        return {
            **changes,
            "pushes": float(sum(step.pushed for step in result.steps)),
            "moves_without_effect": float(sum(step.without_effect for step in result.steps)),
            "invalid_turns": 0.0 if result.valid else 1.0,
        }


def open_sokoban(config: SokobanConfig, task: Task) -> SokobanEnvironment:
    """The environment of a task made by `tasks.training_tasks` or `tasks.held_out_tasks`."""
    return SokobanEnvironment(game_of(config, task))
