"""The record of an attempt, from which all texts about it are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from erl_pipeline.environments.hidden_words.directions import Direction

Outcome = Literal["up", "right", "down", "left", "bump", "bad", "fell", "goal"]
Ending = Literal["goal", "fell", "steps_used", "plan_ended"]


@dataclass(frozen=True)
class Action:
    """An action that the policy's text asked for. `intent` is the direction it named as its aim, if any."""

    word: str
    intent: Direction | None = None


@dataclass(frozen=True)
class Step:
    """One move: the action (None when the text held none), what came of it, and the cell it ended on.

    `outcome` is the direction that the player really moved in, or `bump` (edge of the board), `bad`
    (no valid action; nothing moved), `fell` (into a hole) or `goal`.
    """

    action: Action | None
    outcome: Outcome
    cell: int
