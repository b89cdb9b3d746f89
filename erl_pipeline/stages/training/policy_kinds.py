"""What a package offers as a kind of policy, and the project's own kinds: the tiny one, which a cold start
makes, and pretrained models. Importing it never imports torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.plugins import NO_BYTES, plugins
from erl_pipeline.config.policy import DemonstrationsWarmStart, PretrainedPolicyConfig, TinyPolicyConfig
from erl_pipeline.policies.checkpoints import PolicyTraits

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.planner import Planner
    from erl_pipeline.plan.stage import Stage


SettingsT = TypeVar("SettingsT", bound=PluginSettings)


def _possible(_config: RunConfig) -> None:
    """The check of a kind that goes with every environment and method."""


@dataclass(frozen=True)
class PolicyKind(Generic[SettingsT]):
    """What an entry point of `erl_pipeline.policies` names.

    The module that holds it imports heavy packages only within functions: it is imported in every process.
    """

    settings: type[SettingsT]
    """Has a field `type: Literal["..."]`, by which a configuration chooses the kind."""
    traits: Callable[[SettingsT], PolicyTraits]
    plan_first: Callable[[Planner], str] = field(metadata=NO_BYTES)
    """Plans the stages that make the run's first checkpoint; returns its id."""
    first_stage: Callable[[SettingsT], Stage[Any]] = field(metadata=NO_BYTES)
    """The last of these stages."""
    require_possible: Callable[[RunConfig], None] = field(default=_possible, metadata=NO_BYTES)
    """Raises ValueError, which names them, for settings of a run that do not go with the kind."""
    packages: tuple[str, ...] = field(default=(), metadata=NO_BYTES)
    """Further packages whose code decides what the first checkpoint is; its own always counts."""


def _tiny_traits(policy: TinyPolicyConfig) -> PolicyTraits:
    # 12 h^2 weights and 13 h biases and norms in each block of a GPT-2.
    parameters = policy.layers * (12 * policy.hidden_size**2 + 13 * policy.hidden_size)
    return PolicyTraits(own_words=True, parameters=parameters)


def _plan_tiny(planner: Planner) -> str:
    from erl_pipeline.stages.training.bootstrap import plan_cold_start

    return plan_cold_start(planner)


def _tiny_stage(_policy: TinyPolicyConfig) -> Stage[Any]:
    from erl_pipeline.stages.training.bootstrap import COLD_START

    return COLD_START


def _require_tiny(config: RunConfig) -> None:
    assert isinstance(config.policy, TinyPolicyConfig)
    environment = plugins("environments")[config.environment.type].value
    parts = environment.tiny.require(config.environment)
    method = plugins("methods")[config.method.type].value
    if method.shows_failed_attempts(config.method):
        _require_retries(config.environment.type, parts.retry_tokens, config.policy.cold_start.retries)


def _require_retries(environment: str, tokens: int, share: float | None) -> None:
    """Raise ValueError if a tiny policy would get prompts that its cold start does not demonstrate."""
    told = "attempts that are shown how another failed (method.show_failed_attempt, method.reflection: off)"
    if not tokens:
        raise ValueError(
            f"environment: {environment} has no demonstrations of {told}; with policy.type: tiny switch them "
            "off (method.show_failed_attempt: off)"
        )
    if share == 0.0:
        raise ValueError(
            f"policy.cold_start.retries: 0.0 leaves out {told}; allowed is more than 0.0, or null for a "
            "sufficient share"
        )


def _pretrained_traits(policy: PretrainedPolicyConfig) -> PolicyTraits:
    return PolicyTraits(
        model=policy.model, dtype=policy.dtype, lora=policy.lora, warm_start=policy.warm_start
    )


def _plan_pretrained(planner: Planner) -> str:
    from erl_pipeline.stages.training.bootstrap import COPY_PRETRAINED
    from erl_pipeline.stages.training.warm_start import plan_warm_start

    return plan_warm_start(planner, planner.add(COPY_PRETRAINED, {}, iteration=None))


def _pretrained_stage(policy: PretrainedPolicyConfig) -> Stage[Any]:
    from erl_pipeline.stages.training.bootstrap import COPY_PRETRAINED
    from erl_pipeline.stages.training.warm_start import warm_start_stage

    return COPY_PRETRAINED if policy.warm_start is None else warm_start_stage(policy.warm_start)


def _require_pretrained(config: RunConfig) -> None:
    assert isinstance(config.policy, PretrainedPolicyConfig)
    if isinstance(config.policy.warm_start, DemonstrationsWarmStart):
        environment = plugins("environments")[config.environment.type].value
        environment.require_warm_start(config.environment)


TINY = PolicyKind(
    settings=TinyPolicyConfig,
    traits=_tiny_traits,
    plan_first=_plan_tiny,
    first_stage=_tiny_stage,
    require_possible=_require_tiny,
)
PRETRAINED = PolicyKind(
    settings=PretrainedPolicyConfig,
    traits=_pretrained_traits,
    plan_first=_plan_pretrained,
    first_stage=_pretrained_stage,
    require_possible=_require_pretrained,
)
