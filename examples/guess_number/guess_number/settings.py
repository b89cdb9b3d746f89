"""Settings of the game."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from erl_pipeline.config.base import PluginSettings


class GuessNumberConfig(PluginSettings):
    """Find a number in a given range: reward 1 when it is found, 0 when the guesses are used up."""

    type: Literal["guess_number"] = "guess_number"
    largest: int = Field(default=24, ge=4, le=999)
    """All numbers are between 1 and this one."""
    width: tuple[int, int] = (10, 15)
    """Least and most numbers in the range of a task."""
    max_guesses: int = Field(default=4, ge=1, le=16)
    """Guesses in one attempt; an answer that holds no number costs one too. Halving the range finds one of
    `2 ** max_guesses - 1` numbers for sure."""
    held_out_share: float = Field(default=0.25, gt=0.0, lt=1.0)
    """Share of the ranges that no training task has; held-out tasks are made of them."""
    split_seed: int = Field(default=0, ge=0)
    """Chooses these ranges, and the order of all tasks."""
    format: Literal["prose", "compact"] = "compact"
    """`prose` is for language models; `compact` is word-level, for the tiny policy."""

    @model_validator(mode="after")
    def _possible_widths(self) -> GuessNumberConfig:
        least, most = self.width
        if not 2 <= least <= most <= self.largest:
            raise ValueError(
                f"width: {[least, most]}: allowed is [least, most] with 2 <= least <= most <= {self.largest} "
                "(largest)"
            )
        if least == self.largest:
            raise ValueError(
                f"width: {[least, most]}: with largest: {self.largest} there is one range only, and held-out "
                "tasks need another"
            )
        return self
