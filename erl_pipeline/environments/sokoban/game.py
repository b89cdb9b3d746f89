"""One attempt at a Sokoban board: its record and its end, without the conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.sokoban.board import Board, State
from erl_pipeline.environments.sokoban.compact import CompactRendering, frame_of
from erl_pipeline.environments.sokoban.deadlocks import deadlocks
from erl_pipeline.environments.sokoban.moves import move
from erl_pipeline.environments.sokoban.prose import ProseRendering
from erl_pipeline.environments.sokoban.settings import SokobanConfig
from erl_pipeline.environments.sokoban.steps import Action, Ending, Step
from erl_pipeline.environments.sokoban.world import Symbols, World


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
class TurnResult:
    """What one turn led to, and the moves in it.

    `valid` is False where the text held no action that could be done.
    """

    observation: str
    reward: float
    done: bool
    valid: bool
    steps: Sequence[Step]


class Sokoban:
    """State of one attempt. An answer without a valid action moves nothing and costs a step."""

    def __init__(
        self,
        board: Board,
        world: World,
        max_steps: int,
        rendering: Rendering,
        *,
        action_mode: Literal["step", "plan"] = "step",
        at_deadlock: Literal["continue", "end"] = "continue",
    ) -> None:
        self.board = board
        self._world = world
        self._max_steps = max_steps
        self._rendering = rendering
        self._action_mode = action_mode
        self._at_deadlock = at_deadlock
        self._steps: list[Step] = []
        self._ending: Ending | None = None

    @property
    def instructions(self) -> str:
        return self._rendering.instructions

    @property
    def steps(self) -> Sequence[Step]:
        """What was done so far."""
        return self._steps

    @property
    def state(self) -> State:
        """Where player and boxes are."""
        return self._steps[-1].state if self._steps else self.board.start

    def reset(self) -> str:
        """Begin an attempt; returns the first observation."""
        self._steps = []
        self._ending = None
        return self._rendering.first_observation()

    def step(self, text: str) -> TurnResult:
        """One turn: an action in mode `step`, the whole plan in mode `plan`."""
        if self._ending is not None:
            raise RuntimeError("the attempt is over; reset() begins another")
        actions = self._rendering.read_actions(text)
        if self._action_mode == "step" and len(actions) > 1:
            actions = []
        before = len(self._steps)
        tried: Sequence[Action | None] = actions or [None]
        for action in tried:
            self._steps.append(self._move(action))
            self._ending = self._ending_after(self._steps[-1])
            if self._ending is not None:
                break
        if self._action_mode == "plan" and self._ending is None:
            self._ending = "plan_ended"
        return TurnResult(
            observation=self._rendering.observation(self._steps),
            reward=1.0 if self._ending == "solved" else 0.0,
            done=self._ending is not None,
            valid=bool(actions),
            steps=self._steps[before:],
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
        if action is None:
            return Step(None, "bad", self.state)
        outcome, state, pushed = move(self.board, self.state, self._world.actions[action.word])
        return Step(action, outcome, state, pushed)

    def _ending_after(self, step: Step) -> Ending | None:
        if self.board.is_solved(step.state.boxes):
            return "solved"
        if self._at_deadlock == "end" and step.pushed and deadlocks(self.board, step.state.boxes):
            return "deadlock"
        return "steps_used" if len(self._steps) == self._max_steps else None


def compact_game(config: SokobanConfig, board: Board, world: World, max_steps: int) -> Sokoban:
    """A game in the compact form of these settings."""
    rendering = CompactRendering(board, world, config.max_steps, frame_of(config))
    return Sokoban(
        board, world, max_steps, rendering, action_mode=config.action_mode, at_deadlock=config.at_deadlock
    )


def game_of(config: SokobanConfig, task: Task) -> Sokoban:
    """The game of a task made by `tasks.training_tasks` or `tasks.held_out_tasks`."""
    payload = task.payload
    board = Board(tuple(payload["board"]))
    world = World(payload["actions"], Symbols(**payload["symbols"]))
    max_steps: int = payload["max_steps"]
    if config.format == "compact":
        return compact_game(config, board, world, max_steps)
    rendering = ProseRendering(board, world, max_steps, config.action_mode, config.instructions)
    return Sokoban(
        board, world, max_steps, rendering, action_mode=config.action_mode, at_deadlock=config.at_deadlock
    )
