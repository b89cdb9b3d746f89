"""The plan of an iteration of RLVR."""

from __future__ import annotations

from erl_pipeline.methods.rlvr.settings import FIRST_ATTEMPT, RlvrConfig
from erl_pipeline.plan.plan import RunState
from erl_pipeline.plan.planner import Planner
from erl_pipeline.stages.rollouts.generate_rollouts import plan_shards
from erl_pipeline.stages.training.build_distillation import DistilledRoles
from erl_pipeline.stages.training.fine_tune import plan_distillation
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
