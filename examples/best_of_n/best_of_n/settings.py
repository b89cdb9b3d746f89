"""Settings of best-of-n distillation, and its one role."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from erl_pipeline.config.base import PluginSettings

ATTEMPT = "attempt"
"""The role of its trajectories."""


class BestOfNConfig(PluginSettings):
    """Supervised training on the best of n attempts (RAFT, arXiv 2304.06767). n is `rollouts.group_size`."""

    type: Literal["best_of_n"] = "best_of_n"
    keep: int = Field(default=1, ge=1)
    """The most attempts at one task that are trained on, all of them different."""
    prefer: Literal["shortest", "first"] = "shortest"
    """Which of the successful attempts with the same reward is better: the one with the fewest sampled
    tokens, or the one that was sampled first."""


class BestOfNEpisodeSettings(PluginSettings):
    """What an episode depends on: nothing that can be set."""

    type: Literal["best_of_n"] = "best_of_n"
