"""ERL (arXiv 2602.13949): attempt, feedback, reflection, second attempt; all three texts are trained by
reinforcement, and second attempts that succeeded are distilled onto the first attempt's prompt."""

from erl_pipeline.methods.erl.columns import columns
from erl_pipeline.methods.erl.plan import plan_learning, plan_rollouts
from erl_pipeline.methods.erl.roles import FIRST_ATTEMPT, REFLECTION, SECOND_ATTEMPT
from erl_pipeline.methods.erl.settings import ErlConfig, ErlEpisodeSettings, episode_settings
from erl_pipeline.methods.interface import Method


def _open_episode(settings, prompts):  # type: ignore[no-untyped-def]
    from erl_pipeline.methods.erl.episode import open_episode

    return open_episode(settings, prompts)


def _roles(settings: ErlConfig) -> tuple[str, ...]:
    return (FIRST_ATTEMPT, REFLECTION, SECOND_ATTEMPT) if settings.reflection else (FIRST_ATTEMPT, SECOND_ATTEMPT)


METHOD = Method(
    settings=ErlConfig,
    roles=_roles,
    plan_rollouts=plan_rollouts,
    plan_learning=plan_learning,
    episode_settings=episode_settings,
    open_episode=_open_episode,
    columns=columns,
)
