"""What tables and reports show of a run of ERL."""

from __future__ import annotations

from collections.abc import Sequence

from erl_pipeline.methods.erl.settings import FIRST_ATTEMPT, REFLECTION, SECOND_ATTEMPT, ErlConfig
from erl_pipeline.plan.column import ChartLine, Column
from erl_pipeline.stages.columns import (
    DISTILLED,
    ENTRIES,
    FINE_TUNE_CHARTS,
    HELD_OUT,
    HELD_OUT_SAMPLED,
    HELD_OUT_WITH_MEMORY,
    LOSS,
    TOKENS,
    TOKENS_PER_SECOND,
    UPDATE_CHARTS,
    count_of,
    gain_of,
    groups_without_advantage,
    held_out_episodes,
    success_of,
    success_of_episodes,
    success_of_first_attempts,
)

_FIRST = success_of_first_attempts(FIRST_ATTEMPT, "success rate of first attempts in training")
_EPISODE = success_of_episodes(ChartLine("Success in training", "first or second attempt", "success"))
_SECOND = success_of(
    SECOND_ATTEMPT,
    "2nd",
    "success rate of attempts after a failed one",
    ChartLine(
        "Retries that succeed", "second attempt", "success", "Second attempts are made only after a failure"
    ),
    headline="Retries that succeed",
)
_GAIN = gain_of(
    SECOND_ATTEMPT,
    "gain",
    "success of these minus that of the same task's other first attempts",
)
_RETRIED = count_of(SECOND_ATTEMPT, "retried", "attempts after a failed one")


def columns(settings: ErlConfig) -> Sequence[Column]:
    """The columns, from left to right."""
    distils = settings.distillation is not None
    return (
        _FIRST,
        _EPISODE,
        _SECOND,
        _GAIN,
        _RETRIED,
        *(() if settings.memory is None else (ENTRIES,)),
        LOSS,
        *((DISTILLED,) if distils else ()),
        HELD_OUT,
        HELD_OUT_SAMPLED,
        held_out_episodes("with reflection" if settings.reflection else "with a second attempt"),
        *(() if settings.memory is None else (HELD_OUT_WITH_MEMORY,)),
        TOKENS,
        TOKENS_PER_SECOND,
        *groups_without_advantage((FIRST_ATTEMPT, REFLECTION, SECOND_ATTEMPT)),
        *UPDATE_CHARTS,
        *(FINE_TUNE_CHARTS if distils else ()),
    )
