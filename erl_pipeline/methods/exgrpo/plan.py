"""The plan of an iteration of ExGRPO."""

from __future__ import annotations

from dataclasses import replace

from erl_pipeline.config.objective import ReplayLoss
from erl_pipeline.methods.exgrpo.index_experience import (
    INDEX_EXPERIENCE,
    INDEX_SCORED_EXPERIENCE,
    IndexSettings,
    ScoredIndexSettings,
)
from erl_pipeline.methods.exgrpo.select_replay import SELECT_REPLAY, SelectSettings
from erl_pipeline.methods.exgrpo.settings import REPLAYED, ExgrpoConfig, ReplayConfig, TierSettings
from erl_pipeline.plan.plan import POLICY, RunState
from erl_pipeline.plan.planner import Planner
from erl_pipeline.policies.checkpoints import weights_settings
from erl_pipeline.stages.rollouts.generate_rollouts import plan_shards
from erl_pipeline.stages.rollouts.playing import TASKS
from erl_pipeline.stages.training.replayed_rows import REPLAY
from erl_pipeline.stages.training.training_stage import ROLLOUTS
from erl_pipeline.stages.training.update_policy import plan_update

EXPERIENCE = "experience"
"""Name of the experience in a run's state, and of the input through which stages get it."""


def plan_rollouts(planner: Planner, state: RunState, iteration: int) -> str:
    """Plan what is replayed, then first attempts around it. In the first iteration there is nothing to
    replay."""
    replay = _settings(planner).replay
    if replay is None or EXPERIENCE not in state.memories:
        return plan_shards(planner, state, iteration, memory=None)
    selection = planner.add(
        SELECT_REPLAY,
        {**state.model_inputs(POLICY), TASKS: state.tasks, EXPERIENCE: state.memories[EXPERIENCE]},
        iteration=iteration,
        settings=planner.shared(_select_settings(planner, replay)),
        seed=planner.config.seed,
        index={"iteration": iteration},
    )
    return plan_shards(planner, state, iteration, memory=None, samples=selection)


def plan_learning(
    planner: Planner, state: RunState, iteration: int, rollouts: str, *, remember: bool
) -> RunState:
    """Store, update. On stored rollouts nothing is replayed: fresh attempts alone are trained."""
    replay = _settings(planner).replay
    if replay is None or not remember:
        return plan_update(planner, state, iteration, rollouts)
    selection = planner.planned(SELECT_REPLAY, iteration)
    experience = _plan_index(planner, state, iteration, rollouts, selection, replay)
    loss = None if selection is None else (selection, planner.shared(_loss(replay)))
    state = plan_update(planner, state, iteration, rollouts, replay=loss)
    return replace(state, memories={**state.memories, EXPERIENCE: experience})


def _plan_index(
    planner: Planner,
    state: RunState,
    iteration: int,
    rollouts: str,
    selection: str | None,
    replay: ReplayConfig,
) -> str:
    inputs = {ROLLOUTS: rollouts}
    if selection is not None:
        inputs[REPLAY] = selection
    if EXPERIENCE in state.memories:
        inputs[EXPERIENCE] = state.memories[EXPERIENCE]
    settings = IndexSettings(
        sampler=replay.sampler,
        start_success=replay.start_success,
        keep_duplicates=replay.keep_duplicates,
        tiers=replay.tiers if replay.sampler == "tiers" else None,
    )
    if replay.importance != "trainer":
        return planner.add(INDEX_EXPERIENCE, inputs, iteration=iteration, settings=planner.shared(settings))
    config = planner.config
    scored = ScoredIndexSettings(
        **dict(settings),
        microbatch_tokens=config.update.microbatch_tokens,
        optimizer=config.optimizer,
        trainer=config.trainer,
        weights=weights_settings(config),
    )
    inputs.update(state.model_inputs(POLICY))
    return planner.add(INDEX_SCORED_EXPERIENCE, inputs, iteration=iteration, settings=planner.shared(scored))


def _select_settings(planner: Planner, replay: ReplayConfig) -> SelectSettings:
    """Settings that a sampler does not use have their defaults, so that they are not in the recipe."""
    config, default = planner.config, ReplayConfig()
    by_bucket = replay.sampler == "exgrpo"
    return SelectSettings(
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
        tiers=replay.tiers if replay.sampler == "tiers" else TierSettings(),
        microbatch_tokens=config.update.microbatch_tokens,
        optimizer=config.optimizer,
        trainer=config.trainer,
        weights=weights_settings(config),
    )


def _loss(replay: ReplayConfig) -> ReplayLoss:
    return ReplayLoss(
        role=REPLAYED,
        corrected=replay.importance != "off",
        shaping_beta=replay.shaping_beta,
        weight_cap=replay.weight_cap,
        clip=replay.clip,
    )


def _settings(planner: Planner) -> ExgrpoConfig:
    settings = planner.config.method
    assert isinstance(settings, ExgrpoConfig)
    return settings
