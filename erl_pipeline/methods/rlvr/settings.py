"""Settings of RLVR, and the one role of its trajectories."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator

from erl_pipeline.config.base import PluginSettings, switch
from erl_pipeline.config.optimizer import DistillationConfig

FIRST_ATTEMPT = "first_attempt"


class RlvrConfig(PluginSettings):
    """Reinforcement learning from verifiable rewards: first attempts alone (GRPO, arXiv 2402.03300)."""

    type: Literal["rlvr"] = "rlvr"
    distillation: Annotated[DistillationConfig | None, BeforeValidator(switch)] = None
    """`on`: supervised training on attempts that went well, the control that ERL is compared with."""


class RlvrEpisodeSettings(PluginSettings):
    """What an episode depends on: nothing that can be set."""

    type: Literal["rlvr"] = "rlvr"
