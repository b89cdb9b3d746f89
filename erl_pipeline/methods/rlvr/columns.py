"""What tables and reports show of a run of RLVR."""

from __future__ import annotations

from collections.abc import Sequence

from erl_pipeline.methods.interface import Column
from erl_pipeline.methods.rlvr.roles import FIRST_ATTEMPT
from erl_pipeline.methods.rlvr.settings import RlvrConfig
from erl_pipeline.stages.columns import DISTILLED, HELD_OUT, LOSS, TOKENS, TOKENS_PER_SECOND, success_of


def columns(settings: RlvrConfig) -> Sequence[Column]:
    """The columns, from left to right."""
    distilled = () if settings.distillation is None else (DISTILLED,)
    return (
        success_of(FIRST_ATTEMPT, "1st", "success rate of attempts in training"),
        LOSS,
        *distilled,
        HELD_OUT,
        TOKENS,
        TOKENS_PER_SECOND,
    )
