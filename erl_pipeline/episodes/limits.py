"""The limits that all episodes of a shard have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class RoleLimits:
    """How the turns of one role are sampled: by which model, at which temperature, up to how many tokens.

    `model` is None where they are sampled by a model that somebody else serves, not by one of the run.
    """

    temperature: float
    max_new_tokens: int
    model: str | None = "policy"


@dataclass(frozen=True)
class EpisodeLimits:
    """Limits of episodes.

    `context_length` in tokens and `end_token_ids` are the tokenizer's and model's; an attempt succeeded
    when its reward is at least `success_threshold`; `step_seconds` is the deadline of each call of an
    environment; `by_role` has an entry for each role that the method samples. An attempt that the environment
    failed is played again at most `retries` times. With `failures_are_zero` it counts as one of reward 0, if
    it was not its scorer that failed.
    """

    context_length: int
    end_token_ids: frozenset[int]
    success_threshold: float
    step_seconds: float
    by_role: Mapping[str, RoleLimits]
    retries: int = 0
    failures_are_zero: bool = False
