"""ExGRPO (arXiv 2510.02245): first attempts are trained together with replayed successes of earlier
iterations. It prefers tasks that are neither easy nor hard, and of these the successes that the policy is
surest of."""

from erl_pipeline.methods.exgrpo.plan import columns, plan_learning, plan_rollouts, require_possible
from erl_pipeline.methods.exgrpo.settings import FIRST_ATTEMPT, REPLAYED, ExgrpoConfig, ExgrpoEpisodeSettings
from erl_pipeline.methods.interface import Method
from erl_pipeline.methods.single_attempt import open_single_attempt, single_attempt_limits

METHOD = Method(
    settings=ExgrpoConfig,
    roles=lambda settings: (FIRST_ATTEMPT,) if settings.replay is None else (FIRST_ATTEMPT, REPLAYED),
    plan_rollouts=plan_rollouts,
    plan_learning=plan_learning,
    episode_settings=lambda _settings: ExgrpoEpisodeSettings(),
    open_episode=open_single_attempt(FIRST_ATTEMPT),
    role_limits=single_attempt_limits(FIRST_ATTEMPT),
    columns=columns,
    require_possible=require_possible,
    packages=("erl_pipeline.methods.single_attempt",),
)
