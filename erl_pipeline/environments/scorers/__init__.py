"""Scorers say how good an answer is. They are found by name, in the group `erl_pipeline.scorers`."""

from erl_pipeline.environments.scorers.interface import (
    Scored,
    Scorer,
    ScorerFunction,
    checked_score,
    scorer_named,
)
from erl_pipeline.environments.scorers.numbers import numeric
from erl_pipeline.environments.scorers.symbolic import math
from erl_pipeline.environments.scorers.texts import contains, exact, f1

__all__ = [
    "Scored",
    "Scorer",
    "ScorerFunction",
    "checked_score",
    "contains",
    "exact",
    "f1",
    "math",
    "numeric",
    "scorer_named",
]
