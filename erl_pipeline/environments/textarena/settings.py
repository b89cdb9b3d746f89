"""Settings of TextArena's games."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.environments.textarena.library import require_qualified


class TextArenaConfig(PluginSettings):
    """A game of TextArena for one player, as one conversation."""

    type: Literal["textarena"] = "textarena"
    game: str = "Mastermind-v0"
    """The game, by TextArena's id without `-raw` and `-train`."""
    training_tasks: int = Field(default=256, ge=1, le=100_000)
    """Training tasks, each a beginning of the game that no other task has."""
    test_tasks: int | None = Field(default=None, ge=1, le=100_000)
    """Tasks of a third split. Only `compare` uses it, for its report. `null`: there is none, and its
    beginnings may be trained on."""
    task_seed: int = Field(default=0, ge=0)
    """The tasks derive from it alone, so that runs with different seeds share their tasks."""
    max_turns: int = Field(default=20, ge=1)
    """The most turns of one attempt, which the policy is told; the game's own limit may be lower. A move that
    the game refuses costs a turn."""
    reward: Literal["won", "score"] = "won"
    """`won`: 1 for a game with the full score, 0 for all others. `score`: the game's own score at its end,
    from 0 to 1; most games give part of the score for part of the solution."""

    @field_validator("game")
    @classmethod
    def _that_qualifies(cls, game: str) -> str:
        require_qualified(game)
        return game
