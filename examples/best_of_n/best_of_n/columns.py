"""What tables and reports show of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from best_of_n.selection import SELECT_BEST
from best_of_n.settings import ATTEMPT, BestOfNConfig
from erl_pipeline.plan.column import ChartLine, Column
from erl_pipeline.stages.columns import (
    DISTILLED,
    FINE_TUNE_CHARTS,
    HELD_OUT,
    HELD_OUT_SAMPLED,
    TOKENS,
    TOKENS_PER_SECOND,
    success_of,
)

_ATTEMPTS = success_of(
    ATTEMPT,
    "success",
    "success rate of attempts in training",
    ChartLine("Success in training", "attempt", "success", "Share of sampled attempts"),
)
_SOLVED = Column(SELECT_BEST.name, "tasks_solved", "solved", "tasks that one attempt or more solved", ",d")
_SELECTED = replace(DISTILLED, stage=SELECT_BEST.name)


def columns(settings: BestOfNConfig) -> Sequence[Column]:
    """The columns, from left to right."""
    return (
        _ATTEMPTS,
        _SOLVED,
        _SELECTED,
        HELD_OUT,
        HELD_OUT_SAMPLED,
        TOKENS,
        TOKENS_PER_SECOND,
        *FINE_TUNE_CHARTS,
    )
