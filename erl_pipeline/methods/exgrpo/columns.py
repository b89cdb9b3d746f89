"""What tables and reports show of a run of ExGRPO."""

from __future__ import annotations

from collections.abc import Sequence

from erl_pipeline.methods.exgrpo.index_experience import INDEX_EXPERIENCE
from erl_pipeline.methods.exgrpo.select_replay import SELECT_REPLAY
from erl_pipeline.methods.exgrpo.settings import FIRST_ATTEMPT, ExgrpoConfig
from erl_pipeline.plan.column import ChartLine, Column, Headline, only_drawn
from erl_pipeline.stages.columns import (
    HELD_OUT,
    HELD_OUT_SAMPLED,
    LOSS,
    TOKENS,
    TOKENS_PER_SECOND,
    UPDATE_CHARTS,
    success_of_first_attempts,
)
from erl_pipeline.stages.training.update_policy import UPDATE_POLICY

_FIRST = success_of_first_attempts(FIRST_ATTEMPT, "success rate of fresh attempts in training")
_REPLAYED = Column(
    SELECT_REPLAY.name,
    "replayed",
    "replayed",
    "stored attempts that were replayed",
    ",d",
    adds_up=True,
    headline=Headline("Replayed", "total", "stored attempts; {tokens_saved} tokens were not sampled again"),
)
_AGE = Column(
    SELECT_REPLAY.name,
    "age_mean",
    "age",
    "mean age of what was replayed, in iterations",
    ".1f",
    title="age of replay",
    drawn=ChartLine("Age of replayed attempts", "mean", "iterations"),
)
_STORED = Column(
    INDEX_EXPERIENCE.name,
    "trajectories",
    "stored",
    "attempts that can be replayed",
    ",d",
    drawn=ChartLine("Experience", "attempts", "stored"),
    headline=Headline("Experience", "newest", "attempts stored after the last iteration"),
)


_ENTROPY = "Entropy of stored attempts under the policy at hand"
_WEIGHT = "Replayed tokens: ratio to the stored policy, and weight in the loss"
_TASKS = "Tasks in the experience"
_OF_REPLAY = "replayed_sequences"
_CHARTS = (
    only_drawn(INDEX_EXPERIENCE.name, "tasks", ChartLine(_TASKS, "can be replayed", "tasks"), format=",d"),
    only_drawn(INDEX_EXPERIENCE.name, "retired", ChartLine(_TASKS, "retired", "tasks"), format=",d"),
    *(
        only_drawn(SELECT_REPLAY.name, metric, line)
        for metric, line in (
            ("share_replayed", ChartLine("Share of tasks replayed", "replayed", "share")),
            ("entropy_picked", ChartLine(_ENTROPY, "replayed", "nats a token")),
            ("entropy_candidates", ChartLine(_ENTROPY, "all candidates", "nats a token")),
        )
    ),
    *(
        only_drawn(UPDATE_POLICY.name, metric, line, only_with=_OF_REPLAY)
        for metric, line in (
            ("replay_ratio_mean", ChartLine(_WEIGHT, "ratio w", "mean")),
            ("replay_weight_mean", ChartLine(_WEIGHT, "weight", "mean")),
            ("replay_loss", ChartLine("Policy-gradient loss", "replayed", "loss")),
            ("fresh_loss", ChartLine("Policy-gradient loss", "fresh", "loss")),
        )
    ),
)


def columns(settings: ExgrpoConfig) -> Sequence[Column]:
    """The columns, from left to right."""
    replays = settings.replay is not None
    return (
        _FIRST,
        *((_REPLAYED, _AGE, _STORED) if replays else ()),
        LOSS,
        HELD_OUT,
        HELD_OUT_SAMPLED,
        TOKENS,
        TOKENS_PER_SECOND,
        *UPDATE_CHARTS,
        *(_CHARTS if replays else ()),
    )
