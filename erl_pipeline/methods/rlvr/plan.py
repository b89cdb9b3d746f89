"""The plan of an iteration of RLVR, and what tables and reports show of a run."""

from __future__ import annotations

from collections.abc import Sequence

from erl_pipeline.methods.rlvr.settings import FIRST_ATTEMPT, RlvrConfig
from erl_pipeline.plan.column import Column
from erl_pipeline.plan.plan import RunState
from erl_pipeline.plan.planner import Planner
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
from erl_pipeline.stages.rollouts.generate_rollouts import plan_shards
from erl_pipeline.stages.training.distillation import DistilledRoles, plan_distillation
from erl_pipeline.stages.training.update_policy import plan_update


def plan_rollouts(planner: Planner, state: RunState, iteration: int) -> str:
    """First attempts at the tasks drawn for this iteration."""
    return plan_shards(planner, state, iteration, memory=None)


def plan_learning(
    planner: Planner, state: RunState, iteration: int, rollouts: str, *, remember: bool
) -> RunState:
    """Update; with distillation on, also train on the attempts that went well. There is no memory."""
    settings = planner.config.method
    assert isinstance(settings, RlvrConfig)
    state = plan_update(planner, state, iteration, rollouts)
    if settings.distillation is None:
        return state
    roles = DistilledRoles(role=FIRST_ATTEMPT, prompt_role=FIRST_ATTEMPT)
    return plan_distillation(planner, state, iteration, rollouts, roles, settings.distillation)


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
