"""What replay adds to the plan of an iteration: the selection of what is replayed, before its rollouts, and
the experience that it stores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from erl_pipeline.config.objective import ReplayLoss
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.replay import EXPERIENCE, REPLAYED, ReplayConfig
from erl_pipeline.plan.plan import POLICY, RunState
from erl_pipeline.plan.planner import Planner
from erl_pipeline.plan.stage import Stage
from erl_pipeline.stages.names import ROLLOUTS, TASKS
from erl_pipeline.stages.training.replay.index_experience import (
    INDEX_EXPERIENCE,
    INDEX_SCORED_EXPERIENCE,
    ExperienceIndexSettings,
    ScoredIndexSettings,
)
from erl_pipeline.stages.training.replay.replayed import REPLAY
from erl_pipeline.stages.training.replay.select_replay import SELECT_REPLAY, ReplaySelectSettings
from erl_pipeline.stages.training.training_stage import training_settings


def plan_replay(planner: Planner, state: RunState, iteration: int) -> str | None:
    """Plan what an iteration replays, which is also how often each of its tasks is played; None where replay
    is off, and in the first iteration, which has nothing to replay."""
    replay = planner.config.replay
    if replay is None or EXPERIENCE not in state.memories:
        return None
    return planner.add(
        SELECT_REPLAY,
        {**state.model_inputs(POLICY), TASKS: state.tasks, EXPERIENCE: state.memories[EXPERIENCE]},
        iteration=iteration,
        settings=planner.shared(_select_settings(planner, replay)),
        seed=planner.config.seed,
        index={"iteration": iteration},
    )


def replayed_in(planner: Planner, iteration: int) -> tuple[str, ReplayLoss] | None:
    """What an iteration replays, an artifact of kind `replay`, and the loss of its trajectories; None where
    it replays nothing. On stored rollouts fresh attempts alone are trained."""
    replay, selection = planner.config.replay, planner.planned(SELECT_REPLAY, iteration)
    if replay is None or selection is None:
        return None
    return selection, planner.shared(
        ReplayLoss(
            role=REPLAYED,
            corrected=replay.importance != "off",
            shaping_beta=replay.shaping_beta,
            weight_cap=replay.weight_cap,
            clip=replay.clip,
        )
    )


def plan_experience(planner: Planner, state: RunState, iteration: int, rollouts: str) -> RunState:
    """Plan what an iteration stores to be replayed later; returns the state after it."""
    replay = planner.config.replay
    if replay is None:
        return state
    config, inputs = planner.config, {ROLLOUTS: rollouts}
    selection = planner.planned(SELECT_REPLAY, iteration)
    if selection is not None:
        inputs[REPLAY] = selection
    if EXPERIENCE in state.memories:
        inputs[EXPERIENCE] = state.memories[EXPERIENCE]
    stage: Stage[Any] = INDEX_EXPERIENCE
    settings = ExperienceIndexSettings(
        role=plugins("methods")[config.method.type].value.replayed,
        sampler=replay.sampler,
        start_success=replay.start_success,
        tiers=replay.tiers if replay.sampler == "tiers" else None,
    )
    if replay.importance == "trainer":
        stage = INDEX_SCORED_EXPERIENCE
        settings = ScoredIndexSettings(
            **dict(settings),
            microbatch_tokens=config.update.microbatch_tokens,
            **training_settings(config),
        )
        inputs.update(state.model_inputs(POLICY))
    experience = planner.add(stage, inputs, iteration=iteration, settings=planner.shared(settings))
    return replace(state, memories={**state.memories, EXPERIENCE: experience})


def _select_settings(planner: Planner, replay: ReplayConfig) -> ReplaySelectSettings:
    """Settings that a sampler does not use have their defaults, so that they are not in the recipe."""
    config, default = planner.config, ReplayConfig()
    by_bucket = replay.sampler == "exgrpo"
    return ReplaySelectSettings(
        sampler=replay.sampler,
        share=replay.share,
        tasks_per_iteration=config.rollouts.tasks_per_iteration,
        group_size=config.rollouts.group_size,
        buckets=replay.buckets if by_bucket else default.buckets,
        pick=replay.pick,
        entropy=replay.entropy if replay.pick != "random" else default.entropy,
        importance=replay.importance,
        draw_retired=replay.retire != "tasks",
        max_age=replay.max_age,
        max_per_task=replay.max_per_task,
        tiers=replay.tiers if replay.sampler == "tiers" else default.tiers,
        microbatch_tokens=config.update.microbatch_tokens,
        **training_settings(config),
    )
