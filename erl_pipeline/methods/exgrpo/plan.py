"""The plan of an iteration of ExGRPO, the settings that it refuses, and what tables show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from erl_pipeline.config.objective import ReplayLoss
from erl_pipeline.config.rollouts import UniformSelection
from erl_pipeline.methods.exgrpo import settings as exgrpo
from erl_pipeline.methods.exgrpo.index_experience import (
    INDEX_EXPERIENCE,
    INDEX_SCORED_EXPERIENCE,
    ExperienceIndexSettings,
    ScoredIndexSettings,
)
from erl_pipeline.methods.exgrpo.select_replay import SELECT_REPLAY, ReplaySelectSettings
from erl_pipeline.plan.column import ChartLine, Column, Headline, only_drawn
from erl_pipeline.plan.plan import POLICY, RunState
from erl_pipeline.plan.planner import Planner
from erl_pipeline.policies.checkpoints import weights_settings
from erl_pipeline.stages.columns import success_of_first_attempts, training_columns
from erl_pipeline.stages.names import ROLLOUTS, TASKS
from erl_pipeline.stages.rollouts.generate_rollouts import plan_shards
from erl_pipeline.stages.training.update_policy import REPLAY, UPDATE_POLICY, plan_update

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig


def plan_rollouts(planner: Planner, state: RunState, iteration: int) -> str:
    """Plan what is replayed, then first attempts around it. In the first iteration there is nothing to
    replay."""
    replay = _settings(planner).replay
    if replay is None or exgrpo.EXPERIENCE not in state.memories:
        return plan_shards(planner, state, iteration, memory=None)
    selection = planner.add(
        SELECT_REPLAY,
        {
            **state.model_inputs(POLICY),
            TASKS: state.tasks,
            exgrpo.EXPERIENCE: state.memories[exgrpo.EXPERIENCE],
        },
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
    return replace(state, memories={**state.memories, exgrpo.EXPERIENCE: experience})


def _plan_index(
    planner: Planner,
    state: RunState,
    iteration: int,
    rollouts: str,
    selection: str | None,
    replay: exgrpo.ReplayConfig,
) -> str:
    inputs = {ROLLOUTS: rollouts}
    if selection is not None:
        inputs[REPLAY] = selection
    if exgrpo.EXPERIENCE in state.memories:
        inputs[exgrpo.EXPERIENCE] = state.memories[exgrpo.EXPERIENCE]
    settings = ExperienceIndexSettings(
        sampler=replay.sampler,
        start_success=replay.start_success,
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


def _select_settings(planner: Planner, replay: exgrpo.ReplayConfig) -> ReplaySelectSettings:
    """Settings that a sampler does not use have their defaults, so that they are not in the recipe."""
    config, default = planner.config, exgrpo.ReplayConfig()
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
        tiers=replay.tiers if replay.sampler == "tiers" else exgrpo.TierSettings(),
        microbatch_tokens=config.update.microbatch_tokens,
        optimizer=config.optimizer,
        trainer=config.trainer,
        weights=weights_settings(config),
    )


def _loss(replay: exgrpo.ReplayConfig) -> ReplayLoss:
    return ReplayLoss(
        role=exgrpo.REPLAYED,
        corrected=replay.importance != "off",
        shaping_beta=replay.shaping_beta,
        weight_cap=replay.weight_cap,
        clip=replay.clip,
    )


def _settings(planner: Planner) -> exgrpo.ExgrpoConfig:
    settings = planner.config.method
    assert isinstance(settings, exgrpo.ExgrpoConfig)
    return settings


def require_possible(config: RunConfig) -> None:
    """Raise ValueError, which names both settings, where nothing would be replayed, or replay lacks what it
    needs."""
    method, rollouts = config.method, config.rollouts
    assert isinstance(method, exgrpo.ExgrpoConfig)
    if method.replay is None:
        return
    if not isinstance(rollouts.selection, UniformSelection):
        raise ValueError(
            f"rollouts.selection.type: {rollouts.selection.type}; with method.replay the only "
            "allowed selection is uniform, since replay chooses tasks itself; or set method.replay: off"
        )
    if rollouts.group_size < 2:
        raise ValueError(
            f"rollouts.group_size: {rollouts.group_size}; with method.replay a group is one stored attempt "
            "and fresh ones, so that at least 2 are needed; or set method.replay: off"
        )
    if exgrpo.most_replayed(method.replay.share, rollouts.tasks_per_iteration) < 1:
        raise ValueError(
            f"method.replay.share: {method.replay.share:g} of rollouts.tasks_per_iteration: "
            f"{rollouts.tasks_per_iteration} is less than one task; raise one of them, or "
            "set method.replay: off"
        )
    if config.pipeline.lag and method.replay.importance == "off":
        raise ValueError(
            f"pipeline.lag: {config.pipeline.lag}; with method.replay.importance: off nothing corrects for "
            "the older policy; set importance to behaviour or trainer, or lag to 0"
        )
    _require_young(config, method.replay.max_age)


def _require_young(config: RunConfig, replay_age: int | None) -> None:
    """Raise ValueError where a replayed attempt may be too old for an update that does not drop it. Its age
    is the iterations since it was stored, plus the lag of the policy that sampled it."""
    pipeline = config.pipeline
    if pipeline.max_age is None or pipeline.too_old == "drop":
        return
    if replay_age is None or replay_age + pipeline.lag > pipeline.max_age:
        most = pipeline.max_age - pipeline.lag
        allowed = f"1 to {most}" if most > 0 else "method.replay: off"
        raise ValueError(
            f"method.replay.max_age: {'null' if replay_age is None else replay_age}; allowed with "
            f"pipeline.max_age: {pipeline.max_age}, pipeline.lag: {pipeline.lag} and pipeline.too_old: "
            f"wait is {allowed}, since older attempts would be replayed; or set pipeline.too_old: drop"
        )


_FIRST = success_of_first_attempts(exgrpo.FIRST_ATTEMPT, "success rate of fresh attempts in training")
_REPLAYED = Column(
    SELECT_REPLAY.name,
    "replayed",
    "replayed",
    "stored attempts that were replayed",
    ",d",
    adds_up=True,
    headline=Headline("Replayed", "total", "stored attempts; {tokens_saved} tokens were not sampled again"),
)
_AGE = Column(
    SELECT_REPLAY.name,
    "age_mean",
    "age",
    "mean age of what was replayed, in iterations",
    ".1f",
    title="age of replay",
    drawn=ChartLine("Age of replayed attempts", "mean", "iterations"),
)
_STORED = Column(
    INDEX_EXPERIENCE.name,
    "trajectories",
    "stored",
    "attempts that can be replayed",
    ",d",
    drawn=ChartLine("Experience", "attempts", "stored"),
    headline=Headline("Experience", "newest", "attempts stored after the last iteration"),
)

_ENTROPY = "Entropy of stored attempts under the policy at hand"
_WEIGHT = "Replayed tokens: ratio to the stored policy, and weight in the loss"
_TASKS = "Tasks in the experience"
_OF_REPLAY = "replayed_sequences"
_CHARTS = (
    only_drawn(INDEX_EXPERIENCE.name, "tasks", ChartLine(_TASKS, "can be replayed", "tasks"), format=",d"),
    only_drawn(INDEX_EXPERIENCE.name, "retired", ChartLine(_TASKS, "retired", "tasks"), format=",d"),
    *(
        only_drawn(SELECT_REPLAY.name, metric, line)
        for metric, line in (
            ("share_replayed", ChartLine("Share of tasks replayed", "replayed", "share")),
            ("entropy_picked", ChartLine(_ENTROPY, "replayed", "nats a token")),
            ("entropy_candidates", ChartLine(_ENTROPY, "all candidates", "nats a token")),
        )
    ),
    *(
        only_drawn(UPDATE_POLICY.name, metric, line, only_with=_OF_REPLAY)
        for metric, line in (
            ("replay_ratio_mean", ChartLine(_WEIGHT, "ratio w", "mean")),
            ("replay_weight_mean", ChartLine(_WEIGHT, "weight", "mean")),
            ("replay_loss", ChartLine("Policy-gradient loss", "replayed", "loss")),
            ("fresh_loss", ChartLine("Policy-gradient loss", "fresh", "loss")),
        )
    ),
)


def columns(settings: exgrpo.ExgrpoConfig) -> Sequence[Column]:
    if settings.replay is None:
        return training_columns((_FIRST,))
    return training_columns((_FIRST, _REPLAYED, _AGE, _STORED), charts=_CHARTS)
