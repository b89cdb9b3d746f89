"""ERL (arXiv 2602.13949): attempt, feedback, reflection, second attempt; all three texts are trained by
reinforcement, and second attempts that succeeded are distilled onto the first attempt's prompt."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from erl_pipeline.config.distillation import DistilledRoles
from erl_pipeline.config.prompts import JudgeFeedback
from erl_pipeline.config.self_distillation import SelfDistilledRoles
from erl_pipeline.episodes.roles import JUDGE
from erl_pipeline.methods.erl.plan import columns, plan_learning, plan_rollouts
from erl_pipeline.methods.erl.settings import (
    FIRST_ATTEMPT,
    REFLECTION,
    SECOND_ATTEMPT,
    ErlConfig,
    ErlEpisodeSettings,
    RoleSampling,
    episode_settings,
    first_attempt_settings,
)
from erl_pipeline.methods.interface import Method, ReflectionSpec
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.policies.checkpoints import policy_traits
from storage.errors import ConfigError

if TYPE_CHECKING:
    from erl_pipeline.config.rollouts import SamplingConfig
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.environments.prompt_format import PromptFormat
    from erl_pipeline.episodes.context import EpisodeProtocol, RoleLimits


def _open_episode(
    settings: ErlEpisodeSettings, prompts: PromptFormat | None, *, first_only: bool, retrieval: bool
) -> EpisodeProtocol:
    from erl_pipeline.environments.prompt_format import ChatPrompts
    from erl_pipeline.methods.erl.episode import ErlRules, judge_prompt, run_episode

    judge = settings.feedback if isinstance(settings.feedback, JudgeFeedback) else None
    rules = ErlRules(
        prompts=prompts or ChatPrompts(settings.prompts),
        max_revisions=0 if first_only else settings.max_revisions,
        reflection=settings.reflection,
        show_failed_attempt=settings.shows_failed_attempt,
        retry_ill_formed=settings.ill_formed == "base_prompt",
        retrieval=retrieval,
        retry_from_named_turn=settings.retry_from == "named_turn",
        ask_judge=None if judge is None else partial(judge_prompt, judge),
    )
    return partial(run_episode, rules=rules)


def _role_limits(settings: ErlEpisodeSettings, sampling: SamplingConfig) -> Mapping[str, RoleLimits]:
    from erl_pipeline.episodes.context import RoleLimits

    def of_role(own: RoleSampling) -> RoleLimits:
        return RoleLimits(
            own.temperature or sampling.temperature, own.max_new_tokens or sampling.max_new_tokens
        )

    limits = {
        FIRST_ATTEMPT: of_role(settings.sampling.first_attempt),
        REFLECTION: of_role(settings.sampling.reflection),
        SECOND_ATTEMPT: of_role(settings.sampling.second_attempt),
    }
    judge = settings.feedback
    if isinstance(judge, JudgeFeedback):
        model = POLICY if judge.url is None else None
        limits[JUDGE] = RoleLimits(judge.temperature, judge.max_new_tokens, model)
    return limits


def _judge(settings: ErlEpisodeSettings) -> JudgeFeedback | None:
    judge = settings.feedback
    return judge if isinstance(judge, JudgeFeedback) and judge.url is not None else None


def _require_possible(config: RunConfig) -> None:
    """Raise ConfigError for what this policy cannot do, and for two kinds of memory."""
    settings = config.method
    assert isinstance(settings, ErlConfig)
    own_words = policy_traits(config.policy).own_words
    if config.experience is not None and settings.memory is not None:
        raise ConfigError(
            "experience: on with method.memory: on would put lessons and reflections into one memory; set "
            "method.memory: off"
        )
    if config.experience is not None and not settings.reflection:
        raise ConfigError("experience: on with method.reflection: off; lessons are shown to reflections")
    if settings.memory is not None and settings.memory.examples and own_words:
        raise ConfigError(
            f"method.memory.examples: on; a policy of policy.type: {config.policy.type} reads only prompts "
            "that it was made for; allowed is off, or a pretrained policy"
        )
    if settings.retry_from is not None and config.objective.observation_coefficient:
        raise ConfigError(
            "objective.observation_coefficient: with method.retry_from: named_turn it would also train what "
            "the policy said in turns that are played again; allowed is 0"
        )
    if isinstance(settings.feedback, JudgeFeedback) and own_words:
        raise ConfigError(
            f"method.feedback.type: judge writes sentences, and policy.type: {config.policy.type} reads only "
            "the words of its environment; use feedback.type: rules, or a pretrained policy"
        )


def _reflecting(settings: ErlEpisodeSettings) -> ReflectionSpec:
    from erl_pipeline.environments.prompt_format import ChatPrompts

    return ReflectionSpec(ChatPrompts(settings.prompts), FIRST_ATTEMPT, REFLECTION, SECOND_ATTEMPT)


METHOD = Method(
    settings=ErlConfig,
    roles=lambda settings: (FIRST_ATTEMPT, *([REFLECTION] if settings.reflection else []), SECOND_ATTEMPT),
    plan_rollouts=plan_rollouts,
    plan_learning=plan_learning,
    episode_settings=episode_settings,
    first_attempt_settings=first_attempt_settings,
    open_episode=_open_episode,
    role_limits=_role_limits,
    retrieval=lambda settings: None if settings.memory is None else settings.memory.retrieval,
    packages=("erl_pipeline.environments.prompt_format",),
    reflecting=_reflecting,
    columns=columns,
    chat_server=_judge,
    shows_failed_attempts=lambda settings: settings.shows_failed_attempt,
    require_possible=_require_possible,
    takes_experience=True,
    replayed=FIRST_ATTEMPT,
    distilled=DistilledRoles(role=SECOND_ATTEMPT, prompt_role=FIRST_ATTEMPT, via_role=REFLECTION),
    distils_by_itself="separate",
    self_distilled=SelfDistilledRoles(attempt=FIRST_ATTEMPT, retry=SECOND_ATTEMPT),
)
