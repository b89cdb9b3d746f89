"""What tables and reports show of a run of RLVR."""

from __future__ import annotations

from collections.abc import Sequence

from erl_pipeline.methods.rlvr.settings import FIRST_ATTEMPT, RlvrConfig
from erl_pipeline.plan.column import Column
from erl_pipeline.stages.columns import (
    DISTILLED,
    FINE_TUNE_CHARTS,
    HELD_OUT,
    HELD_OUT_SAMPLED,
    LOSS,
    TOKENS,
    TOKENS_PER_SECOND,
    UPDATE_CHARTS,
    groups_without_advantage,
    success_of_first_attempts,
)

_FIRST = success_of_first_attempts(FIRST_ATTEMPT, "success rate of attempts in training")


def columns(settings: RlvrConfig) -> Sequence[Column]:
    """The columns, from left to right."""
    distils = settings.distillation is not None
    return (
        _FIRST,
        LOSS,
        *((DISTILLED,) if distils else ()),
        HELD_OUT,
        HELD_OUT_SAMPLED,
        TOKENS,
        TOKENS_PER_SECOND,
        *groups_without_advantage((FIRST_ATTEMPT,)),
        *UPDATE_CHARTS,
        *(FINE_TUNE_CHARTS if distils else ()),
    )
