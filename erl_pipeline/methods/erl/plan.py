"""The plan of an iteration of ERL."""

from __future__ import annotations

from dataclasses import replace

from erl_pipeline.config.memory import KeepSettings
from erl_pipeline.methods.erl.settings import FIRST_ATTEMPT, REFLECTION, SECOND_ATTEMPT, ErlConfig
from erl_pipeline.plan.plan import RunState
from erl_pipeline.plan.planner import Planner
from erl_pipeline.stages.memory.forget_memory import plan_forgetting
from erl_pipeline.stages.memory.index_memory import INDEX_MEMORY, IndexSettings
from erl_pipeline.stages.names import MEMORY
from erl_pipeline.stages.rollouts.generate_rollouts import plan_shards
from erl_pipeline.stages.training.build_distillation import DistilledRoles
from erl_pipeline.stages.training.fine_tune import plan_distillation
from erl_pipeline.stages.training.update_policy import plan_update


def plan_rollouts(planner: Planner, state: RunState, iteration: int) -> str:
    """Episodes of the tasks drawn for this iteration; reflections see the memory that the state names."""
    return plan_shards(planner, state, iteration, memory=state.memories.get(MEMORY))


def plan_learning(
    planner: Planner, state: RunState, iteration: int, rollouts: str, *, remember: bool
) -> RunState:
    """Remember, update, distil, fine-tune."""
    settings = _settings(planner)
    if remember and settings.memory is not None:
        state = _plan_memory(planner, state, iteration, rollouts, settings.memory.keep)
    state = plan_update(planner, state, iteration, rollouts)
    if settings.distillation is not None:
        roles = DistilledRoles(
            role=SECOND_ATTEMPT,
            prompt_role=FIRST_ATTEMPT,
            via_role=REFLECTION,
            chain=settings.distillation.chain,
        )
        state = plan_distillation(planner, state, iteration, rollouts, roles, settings.distillation)
    return state


def _plan_memory(
    planner: Planner, state: RunState, iteration: int, rollouts: str, keep: KeepSettings
) -> RunState:
    parent = {MEMORY: state.memories[MEMORY]} if MEMORY in state.memories else {}
    settings = planner.shared(IndexSettings(keep=keep, text_role=REFLECTION, opening_role=FIRST_ATTEMPT))
    version = planner.add(
        INDEX_MEMORY, {"rollouts": rollouts, **parent}, iteration=iteration, settings=settings
    )
    version = plan_forgetting(planner, version, iteration)
    return replace(state, memories={**state.memories, MEMORY: version})


def _settings(planner: Planner) -> ErlConfig:
    settings = planner.config.method
    assert isinstance(settings, ErlConfig)
    return settings
