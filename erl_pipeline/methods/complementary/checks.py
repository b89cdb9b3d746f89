"""Checks for settings that exclude each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erl_pipeline.config.generation import VllmEngineConfig
from erl_pipeline.config.plugins.installed import plugins
from erl_pipeline.config.policy import TinyPolicyConfig
from erl_pipeline.methods.complementary.settings import (
    ComplementaryConfig,
    CrlExperienceConfig,
    WeightsExperienceConfig,
)

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig


def require_possible(config: RunConfig) -> None:
    """Raise ValueError, which names both settings, where two settings exclude each other."""
    method = config.method
    assert isinstance(method, ComplementaryConfig)
    if method.crl is not None:
        _require_extractor(config, method.crl)
    if isinstance(method.experience, WeightsExperienceConfig) and config.pipeline.max_age is not None:
        raise ValueError(
            f"pipeline.max_age: {config.pipeline.max_age}; allowed with method.experience.type: weights is "
            "null, since it trains stored trajectories again by their weight, whatever their age"
        )


def _require_extractor(config: RunConfig, crl: CrlExperienceConfig) -> None:
    model, engine = crl.extractor.model, config.engine
    if isinstance(config.policy, TinyPolicyConfig):
        if model is not None:
            raise ValueError(
                f"method.experience.extractor.model: {model}; allowed with policy.type: tiny is null: "
                "the extractor must read and write the words of the tiny policy, and gets a cold start of "
                "its own"
            )
        environment = plugins("environments")[config.environment.type].value
        if environment.tiny.extractor(config.environment) is None:
            raise ValueError(
                f"method.experience: crl needs a model for its extractor; with policy.type: tiny these "
                f"settings of environment.type: {config.environment.type} give none (FrozenLake: format: "
                "compact with action_mode: step). Allowed are those, a pretrained policy, or "
                "method.experience: off"
            )
    elif crl.extractor.cold_start is not None:
        raise ValueError(
            "method.experience.extractor.cold_start is for policy.type: tiny; leave it out with policy.type: "
            "pretrained, or name a model in method.experience.extractor.model"
        )
    if isinstance(engine, VllmEngineConfig) and engine.others_servers:
        raise ValueError(
            f"engine.{engine.others_servers}: these servers serve one model, and method.experience: crl "
            "samples from two; leave it out, so that each model gets a server of its own, or set "
            "method.experience: off"
        )
