"""The plan of an iteration."""

from __future__ import annotations

from best_of_n.selection import SELECT_BEST, SelectionSettings
from best_of_n.settings import BestOfNConfig
from erl_pipeline.plan.plan import RunState
from erl_pipeline.plan.planner import Planner
from erl_pipeline.stages.names import ROLLOUTS
from erl_pipeline.stages.rollouts.generate_rollouts import plan_shards
from erl_pipeline.stages.training.distillation import plan_fine_tune


def plan_rollouts(planner: Planner, state: RunState, iteration: int) -> str:
    """Attempts at the tasks drawn for this iteration."""
    return plan_shards(planner, state, iteration, memory=None)


def plan_learning(
    planner: Planner, state: RunState, iteration: int, rollouts: str, *, remember: bool
) -> RunState:
    """Select the best attempts, and train on them. There is no memory."""
    settings = planner.config.method
    assert isinstance(settings, BestOfNConfig)
    selection = planner.shared(SelectionSettings(keep=settings.keep, prefer=settings.prefer))
    dataset = planner.add(SELECT_BEST, {ROLLOUTS: rollouts}, iteration=iteration, settings=selection)
    return plan_fine_tune(planner, state, iteration, dataset)
