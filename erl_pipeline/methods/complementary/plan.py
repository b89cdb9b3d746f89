"""The plan of an iteration of Complementary RL, the settings that it refuses, and what tables show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from erl_pipeline.config.objective import RoleObjective
from erl_pipeline.config.plugins import plugins
from erl_pipeline.methods.complementary.evaluate import EVALUATE_WITH_EXPERIENCE
from erl_pipeline.methods.complementary.score import SCORE_EXPERIENCE, WEIGHTED_UPDATE
from erl_pipeline.methods.complementary.settings import (
    FIRST_ATTEMPT,
    SCORES,
    ComplementaryConfig,
    WeightsExperienceConfig,
)
from erl_pipeline.plan.column import ChartLine, Column
from erl_pipeline.plan.plan import POLICY, RunState
from erl_pipeline.plan.planner import Planner
from erl_pipeline.stages import columns as shared
from erl_pipeline.stages.memory import state_evaluated
from erl_pipeline.stages.names import MEMORY, ROLLOUTS, TASKS
from erl_pipeline.stages.rollouts.generate_rollouts import plan_shards
from erl_pipeline.stages.training.training_stage import plan_training
from erl_pipeline.stages.training.update_policy import REFERENCE, UPDATE_POLICY, plan_update
from storage.artifacts.recipe import derive_seed

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig


def plan_rollouts(planner: Planner, state: RunState, iteration: int) -> str:
    """Attempts at the tasks drawn for this iteration; guided ones see the memory that the state names."""
    return plan_shards(planner, state, iteration, memory=state.memories.get(MEMORY))


def plan_learning(
    planner: Planner, state: RunState, iteration: int, rollouts: str, *, remember: bool
) -> RunState:
    """Update the policy. With the variant `weights`: score, then update."""
    settings = _settings(planner)
    if isinstance(settings.experience, WeightsExperienceConfig):
        return _plan_weighted(planner, state, iteration, rollouts, remember=remember)
    crl = settings.crl
    warming_up = remember and crl is not None and iteration <= crl.warmup_iterations
    return _plan_policy(planner, state, iteration, rollouts, held=warming_up)


def plan_evaluation(planner: Planner, state: RunState, iteration: int, *, last: bool) -> None:
    """Held-out attempts that see the newest experience."""
    crl = _settings(planner).crl
    if crl is None or not crl.evaluate or MEMORY not in state.memories:
        return
    if planner.evaluation_due(
        EVALUATE_WITH_EXPERIENCE, iteration, last=last, every=planner.config.evaluation.every
    ):
        seen = state_evaluated(planner, state, iteration, EVALUATE_WITH_EXPERIENCE.name)
        inputs = {**seen.model_inputs(POLICY), TASKS: seen.tasks, MEMORY: seen.memories[MEMORY]}
        planner.add(
            EVALUATE_WITH_EXPERIENCE,
            inputs,
            iteration=iteration,
            seed=derive_seed(planner.config.seed, EVALUATE_WITH_EXPERIENCE.name),
            index={"iteration": iteration},
        )


def _plan_policy(planner: Planner, state: RunState, iteration: int, rollouts: str, *, held: bool) -> RunState:
    """Update the policy. While it is `held`, its attempts have weight 0, and what the environment said has no
    loss, so that it does not change."""
    if not held:
        return plan_update(planner, state, iteration, rollouts)
    settings = planner.settings(UPDATE_POLICY)
    objective = settings.objective.model_copy(
        update={
            "roles": {FIRST_ATTEMPT: RoleObjective(weight=0.0)},
            "kl_coefficient": 0.0,
            "observation_coefficient": 0.0,
        }
    )
    without = planner.shared(settings.model_copy(update={"objective": objective}))
    return plan_training(planner, state, iteration, UPDATE_POLICY, {ROLLOUTS: rollouts}, POLICY, without)


def _plan_weighted(
    planner: Planner, state: RunState, iteration: int, rollouts: str, *, remember: bool
) -> RunState:
    if not remember:
        return plan_update(planner, state, iteration, rollouts)
    before = {SCORES: state.memories[SCORES]} if SCORES in state.memories else {}
    scores = planner.add(
        SCORE_EXPERIENCE,
        {**state.model_inputs(POLICY), ROLLOUTS: rollouts, **before},
        iteration=iteration,
        seed=planner.config.seed,
        index={"iteration": iteration},
    )
    state = replace(state, memories={**state.memories, SCORES: scores})
    inputs = {ROLLOUTS: rollouts, SCORES: scores}
    if planner.config.objective.needs_reference:
        inputs[REFERENCE] = state.initial[POLICY]
    return plan_training(planner, state, iteration, WEIGHTED_UPDATE, inputs, POLICY)


def _settings(planner: Planner) -> ComplementaryConfig:
    settings = planner.config.method
    assert isinstance(settings, ComplementaryConfig)
    return settings


def require_possible(config: RunConfig) -> None:
    """Raise ValueError, which names both settings, where two settings exclude each other."""
    method = config.method
    assert isinstance(method, ComplementaryConfig)
    if plugins("environments")[config.environment.type].value.has_agents(config.environment):
        raise ValueError(
            f"environment.type: {config.environment.type}; method complementary trains no agents yet, since "
            "it reads one token sequence of each attempt; use method.type: erl or rlvr"
        )
    if not isinstance(method.experience, WeightsExperienceConfig):
        return
    if config.objective.observation_coefficient:
        raise ValueError(
            f"objective.observation_coefficient: {config.objective.observation_coefficient:g}; allowed with "
            "method.experience.type: weights is 0, since its update trains what the policy said alone"
        )
    if config.objective.credit == "turn":
        raise ValueError(
            "objective.credit: turn; allowed with method.experience.type: weights is episode, since stored "
            "trajectories are trained again by one advantage each"
        )
    if config.pipeline.max_age is not None:
        raise ValueError(
            f"pipeline.max_age: {config.pipeline.max_age}; allowed with method.experience.type: weights is "
            "null, since it trains stored trajectories again by their weight, whatever their age"
        )


_FIRST = shared.success_of_first_attempts(FIRST_ATTEMPT, "success rate of attempts in training")
_WITH_EXPERIENCE = Column(
    EVALUATE_WITH_EXPERIENCE.name,
    "greedy_success",
    "held-out with",
    "success rate of greedy first attempts on held-out tasks that see experience",
    compare=True,
    title="held-out success with experience",
    share=True,
    interval=True,
    drawn=ChartLine("Held-out success", "greedy first attempt with experience", "success"),
)


def columns(settings: ComplementaryConfig) -> Sequence[Column]:
    evaluated = settings.crl is not None and settings.crl.evaluate
    return shared.training_columns((_FIRST,), held_out=(_WITH_EXPERIENCE,) if evaluated else ())
