"""One attempt at a FrozenLake board: its rules and its record, without the conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from erl_pipeline.environments.frozen_lake.board import Board
from erl_pipeline.environments.frozen_lake.compact import CompactRendering
from erl_pipeline.environments.frozen_lake.prose import ProseRendering
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.short import ShortRendering
from erl_pipeline.environments.frozen_lake.steps import Action, Ending, Step
from erl_pipeline.environments.frozen_lake.world import Symbols, World
from erl_pipeline.environments.interface import Task


class Rendering(Protocol):
    """All texts about an attempt, and the reading of the policy's text."""

    @property
    def instructions(self) -> str: ...
    def first_observation(self) -> str: ...
    def read_actions(self, text: str) -> list[Action]: ...
    def observation(self, steps: Sequence[Step]) -> str: ...
    def trace(self, steps: Sequence[Step]) -> str: ...
    def feedback(self, steps: Sequence[Step], ending: Ending) -> str: ...


@dataclass(frozen=True)
class Moved:
    """What one turn led to. `valid` is False where the text held no action that could be done."""

    observation: str
    reward: float
    done: bool
    valid: bool


class FrozenLake:
    """State of one attempt. An answer without a valid action moves nothing and costs a step."""

    def __init__(
        self,
        board: Board,
        world: World,
        max_steps: int,
        action_mode: Literal["step", "plan"],
        rendering: Rendering,
    ) -> None:
        self._board = board
        self._world = world
        self._max_steps = max_steps
        self._action_mode = action_mode
        self._rendering = rendering
        self._steps: list[Step] = []
        self._ending: Ending | None = None

    @property
    def instructions(self) -> str:
        return self._rendering.instructions

    @property
    def steps(self) -> Sequence[Step]:
        """What was done so far."""
        return self._steps

    def reset(self) -> str:
        """Begin an attempt; returns the first observation."""
        self._steps = []
        self._ending = None
        return self._rendering.first_observation()

    def step(self, text: str) -> Moved:
        """One turn: an action in mode `step`, the whole plan in mode `plan`."""
        if self._ending is not None:
            raise RuntimeError("the attempt is over; reset() begins another")
        actions = self._rendering.read_actions(text)
        if self._action_mode == "step" and len(actions) > 1:
            actions = []
        tried: Sequence[Action | None] = actions or [None]
        for action in tried:
            self._steps.append(self._move(action))
            self._ending = self._ending_after(self._steps[-1])
            if self._ending is not None:
                break
        if self._action_mode == "plan" and self._ending is None:
            self._ending = "plan_ended"
        return Moved(
            observation=self._rendering.observation(self._steps),
            reward=1.0 if self._ending == "goal" else 0.0,
            done=self._ending is not None,
            valid=bool(actions),
        )

    def feedback(self) -> str:
        """Outcome and counts of the finished attempt."""
        if self._ending is None:
            raise RuntimeError("the attempt is not over; there is no feedback yet")
        return self._rendering.feedback(self._steps, self._ending)

    def trace(self) -> str:
        """What was done so far, and what came of it."""
        return self._rendering.trace(self._steps)

    def _move(self, action: Action | None) -> Step:
        cell = self._steps[-1].cell if self._steps else self._board.start
        if action is None:
            return Step(None, "bad", cell)
        direction = self._world.actions[action.word]
        reached = self._board.neighbour(cell, direction)
        if reached == cell:
            return Step(action, "bump", cell)
        letter = self._board.letters[reached]
        return Step(action, "fell" if letter == "H" else "goal" if letter == "G" else direction, reached)

    def _ending_after(self, step: Step) -> Ending | None:
        if step.outcome == "goal" or step.outcome == "fell":
            return step.outcome
        return "steps_used" if len(self._steps) == self._max_steps else None


def game_of(config: FrozenLakeConfig, task: Task) -> FrozenLake:
    """The game of a task made by `tasks.training_tasks` or `tasks.held_out_tasks`."""
    payload = task.payload
    board = Board(tuple(payload["board"]))
    world = World(payload["actions"], Symbols(**payload["symbols"]), payload.get("realm", ""))
    max_steps: int = payload["max_steps"]
    rendering: Rendering
    if config.format == "compact":
        rendering = CompactRendering(board, world, config.max_steps, config.frame)
    elif config.format == "short":
        rendering = ShortRendering(board, world, config.instructions)
    else:
        rendering = ProseRendering(board, world, max_steps, config.action_mode, config.instructions)
    return FrozenLake(board, world, max_steps, config.action_mode, rendering)
