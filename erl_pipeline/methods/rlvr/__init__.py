"""RLVR, the baseline: first attempts, trained by reinforcement from verifiable rewards (GRPO)."""

from collections.abc import Sequence
from typing import Literal

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.distillation import DistilledRoles
from erl_pipeline.config.self_distillation import SelfDistilledRoles
from erl_pipeline.methods.interface import Method
from erl_pipeline.methods.single_attempt import open_single_attempt, single_attempt_limits
from erl_pipeline.plan.column import Column
from erl_pipeline.plan.plan import RunState
from erl_pipeline.plan.planner import Planner
from erl_pipeline.stages.columns import success_of_first_attempts, training_columns
from erl_pipeline.stages.rollouts.generate_rollouts import plan_shards
from erl_pipeline.stages.training.update_policy import plan_update

FIRST_ATTEMPT = "first_attempt"


class RlvrConfig(PluginSettings):
    """Reinforcement learning from verifiable rewards: first attempts alone (GRPO, arXiv 2402.03300)."""

    type: Literal["rlvr"] = "rlvr"


def plan_rollouts(planner: Planner, state: RunState, iteration: int) -> str:
    """First attempts at the tasks drawn for this iteration."""
    return plan_shards(planner, state, iteration, memory=None)


def plan_learning(
    planner: Planner, state: RunState, iteration: int, rollouts: str, *, remember: bool
) -> RunState:
    """Update. There is no memory."""
    return plan_update(planner, state, iteration, rollouts)


_FIRST = success_of_first_attempts(FIRST_ATTEMPT, "success rate of attempts in training")


def columns(settings: RlvrConfig) -> Sequence[Column]:
    return training_columns((_FIRST,), roles=(FIRST_ATTEMPT,))


METHOD = Method(
    settings=RlvrConfig,
    roles=lambda _settings: (FIRST_ATTEMPT,),
    plan_rollouts=plan_rollouts,
    plan_learning=plan_learning,
    episode_settings=lambda settings: settings,
    open_episode=open_single_attempt(FIRST_ATTEMPT),
    role_limits=single_attempt_limits(FIRST_ATTEMPT),
    columns=columns,
    packages=("erl_pipeline.methods.single_attempt",),
    replayed=FIRST_ATTEMPT,
    distilled=DistilledRoles(role=FIRST_ATTEMPT, prompt_role=FIRST_ATTEMPT),
    self_distilled=SelfDistilledRoles(attempt=FIRST_ATTEMPT),
)
