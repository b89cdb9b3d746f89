"""The record of an attempt, from which all texts about it are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from erl_pipeline.environments.hidden_words.directions import Direction
from erl_pipeline.environments.sokoban.board import State
from erl_pipeline.environments.sokoban.moves import Outcome

Ending = Literal["solved", "deadlock", "steps_used", "plan_ended"]


@dataclass(frozen=True)
class Action:
    """An action that the policy's text asked for. `intent` is the direction it named as its aim, if any."""

    word: str
    intent: Direction | None = None


@dataclass(frozen=True)
class Step:
    """One move: the action (None when the text held none), what came of it, and the state after it.

    `outcome` is as `moves.Outcome`, or `bad` (no valid action; nothing moved).
    """

    action: Action | None
    outcome: Outcome | Literal["bad"]
    state: State
    pushed: bool = False

    @property
    def without_effect(self) -> bool:
        """Whether a valid action moved nothing."""
        return self.outcome in ("wall", "box_wall", "box_box")
