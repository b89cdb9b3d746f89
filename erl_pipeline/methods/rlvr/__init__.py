"""RLVR, the baseline: first attempts, trained by reinforcement from verifiable rewards (GRPO)."""

from __future__ import annotations

from erl_pipeline.methods.interface import Method
from erl_pipeline.methods.rlvr.plan import columns, plan_learning, plan_rollouts
from erl_pipeline.methods.rlvr.settings import FIRST_ATTEMPT, RlvrConfig, RlvrEpisodeSettings
from erl_pipeline.methods.single_attempt import open_single_attempt, single_attempt_limits

METHOD = Method(
    settings=RlvrConfig,
    roles=lambda _settings: (FIRST_ATTEMPT,),
    plan_rollouts=plan_rollouts,
    plan_learning=plan_learning,
    episode_settings=lambda _settings: RlvrEpisodeSettings(),
    open_episode=open_single_attempt(FIRST_ATTEMPT),
    role_limits=single_attempt_limits(FIRST_ATTEMPT),
    columns=columns,
    packages=("erl_pipeline.methods.single_attempt",),
)
