"""What tables and reports show of a run of ERL."""

from __future__ import annotations

from collections.abc import Sequence

from erl_pipeline.methods.erl.roles import FIRST_ATTEMPT, SECOND_ATTEMPT
from erl_pipeline.methods.erl.settings import ErlConfig
from erl_pipeline.methods.interface import Column
from erl_pipeline.stages.columns import (
    DISTILLED,
    ENTRIES,
    HELD_OUT,
    LOSS,
    TOKENS,
    TOKENS_PER_SECOND,
    count_of,
    success_of,
)


def columns(settings: ErlConfig) -> Sequence[Column]:
    """The columns, from left to right."""
    return (
        success_of(FIRST_ATTEMPT, "1st", "success rate of first attempts in training"),
        success_of(SECOND_ATTEMPT, "2nd", "success rate of attempts after a failed one"),
        count_of(SECOND_ATTEMPT, "retried", "attempts after a failed one"),
        *(() if settings.memory is None else (ENTRIES,)),
        LOSS,
        *(() if settings.distillation is None else (DISTILLED,)),
        HELD_OUT,
        TOKENS,
        TOKENS_PER_SECOND,
    )
