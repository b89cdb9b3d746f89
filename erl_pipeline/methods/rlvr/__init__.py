"""RLVR, the baseline: first attempts, trained by reinforcement from verifiable rewards (GRPO)."""

from erl_pipeline.methods.interface import Method
from erl_pipeline.methods.rlvr.columns import columns
from erl_pipeline.methods.rlvr.plan import plan_learning, plan_rollouts
from erl_pipeline.methods.rlvr.roles import FIRST_ATTEMPT
from erl_pipeline.methods.rlvr.settings import RlvrConfig, RlvrEpisodeSettings


def _open_episode(settings, prompts):  # type: ignore[no-untyped-def]
    from erl_pipeline.methods.rlvr.episode import open_episode

    return open_episode(settings, prompts)


METHOD = Method(
    settings=RlvrConfig,
    roles=lambda _settings: (FIRST_ATTEMPT,),
    plan_rollouts=plan_rollouts,
    plan_learning=plan_learning,
    episode_settings=lambda _settings: RlvrEpisodeSettings(),
    open_episode=_open_episode,
    columns=columns,
)
