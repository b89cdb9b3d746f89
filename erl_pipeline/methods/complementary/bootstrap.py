"""The stages that make the extractor's first checkpoint, where it is not the policy's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from erl_pipeline.config.plugins.installed import plugins
from erl_pipeline.config.policy import TinyPolicyConfig
from erl_pipeline.methods.complementary.settings import ComplementaryConfig
from erl_pipeline.plan.stage import StageCall, StageResult
from erl_pipeline.stages.tasks.prepare_tasks import located
from erl_pipeline.stages.training.bootstrap import (
    COLD_START,
    COPY_PRETRAINED,
    ColdStartSettings,
    cold_start_with,
)

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.sources import Sources

_NAME = "bootstrap_extractor"


def _slice(config: RunConfig, sources: Sources) -> ColdStartSettings:
    """The settings of the policy's cold start, with the extractor's own settings where it has some."""
    assert COLD_START.slice is not None
    settings = COLD_START.slice(config, sources)
    assert isinstance(settings.policy, TinyPolicyConfig)
    assert isinstance(config.method, ComplementaryConfig)
    own = None if config.method.crl is None else config.method.crl.extractor.cold_start
    if own is None:
        return settings
    learning = own.model_copy(update={"seed": 0})  # the recipe holds the seed
    return settings.model_copy(update={"policy": settings.policy.model_copy(update={"cold_start": learning})})


def _cold_start(call: StageCall[ColdStartSettings]) -> StageResult:
    environment = located(call.settings.environment, call.settings.files, call.locations)
    plugin = plugins("environments")[environment.type].value
    return cold_start_with(call, plugin.tiny.extractor(environment))


COLD_START_EXTRACTOR = replace(
    COLD_START, name=_NAME, compute=_cold_start, slice=_slice, code=(*COLD_START.code, "method")
)

COPY_EXTRACTOR = replace(COPY_PRETRAINED, name=_NAME, slice=None)
"""The plan passes its settings."""
